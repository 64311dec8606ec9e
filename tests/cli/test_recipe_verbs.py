import json

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.cli.recipe import launch_command, read_launch
from embrew.recipe import Recipe, list_launches, list_recipes, read_recipe
from embrew.sweep.rows import list_sweeps


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_names_every_shipped_recipe():
    result = run("recipe", "list")
    assert result.exit_code == 0
    for name in [*list_recipes(), *list_launches(), *list_sweeps()]:
        assert name in result.stdout


def test_show_prints_the_file_as_it_is():
    result = run("recipe", "show", "llm2comp/nano")
    assert result.exit_code == 0
    assert result.stdout == read_recipe("llm2comp/nano")[0]


def test_show_with_overrides_is_a_recipe_again(tmp_path):
    result = run("recipe", "show", "llm2comp/nano", "stages.compress.training.learning_rate=5e-5")
    assert result.exit_code == 0
    path = tmp_path / "mine.yaml"
    path.write_text(result.stdout, encoding="utf-8")
    assert Recipe.load(path) == Recipe.load("llm2comp/nano", ["stages.0.training.learning_rate=5e-5"])
    assert run("recipe", "show", path, "--resolved").stdout == result.stdout


def test_copy_keeps_comments_and_replaces_nothing_unasked(tmp_path):
    target = tmp_path / "new" / "mine.yaml"
    assert run("recipe", "copy", "baselines/mean", target).exit_code == 0
    assert target.read_text(encoding="utf-8") == read_recipe("baselines/mean")[0]
    again = run("recipe", "copy", "llm2comp/nano", target)
    assert again.exit_code == 1
    assert "exists" in again.stderr
    assert run("recipe", "copy", "llm2comp/nano", target, "--overwrite").exit_code == 0
    assert Recipe.load(target) == Recipe.load("llm2comp/nano")


def test_copy_without_a_file_takes_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("recipe", "copy", "llm2comp/nano").exit_code == 0
    assert (tmp_path / "llm2comp-nano.yaml").is_file()
    assert "did you mean 'llm2comp/nano'" in run("recipe", "copy", "llm2comp/nanno").stderr


@pytest.mark.parametrize("name", list_launches())
def test_launches_are_copied_and_shown_and_are_no_recipes(name, tmp_path):
    target = tmp_path / "launch.yaml"
    result = run("recipe", "copy", name, target)
    assert result.exit_code == 0 and launch_command(name, target) in result.stdout.replace("\n", "")
    assert target.read_text(encoding="utf-8") == read_launch(name) == run("recipe", "show", name).stdout
    for verb in (["recipe", "check"], ["recipe", "show", "--resolved"], ["train", "--output", tmp_path / "run"]):
        result = run(*verb, name)
        assert result.exit_code == 1
        assert f"{name} is a launcher configuration, not a recipe: embrew recipe copy {name} FILE" in result.stderr


@pytest.mark.parametrize("name", list_recipes())
def test_check_passes_every_shipped_recipe(name):
    result = run("recipe", "check", name)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{name}: valid")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "stages.compress.training.max_step=3",
            "training.max_step; it is none of the 62 keys of StageArguments",
        ),
        ("stages.compress.objective.divergense=kl", "'divergense'; choose from"),
        ("stages.compress.objective.type=compressor", "'compressor'; choose from alignment, angle"),
        ("stages.supervised.objective.temperature=warm", "temperature='warm'"),
    ],
)
def test_check_finds_what_the_objective_and_the_trainer_do_not_know(override, message):
    result = run("recipe", "check", "llm2comp/nano", override)
    assert result.exit_code == 1
    assert message in result.stderr


def test_schema_is_json_and_knows_the_recipe():
    result = run("recipe", "schema")
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    assert set(schema["properties"]) == {"encoder", "stages", "evaluation", "seed"}
