import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embrew.data.reading import data_identity
from embrew.recipe import Recipe, build, list_launches, list_recipes
from embrew.recipe.overrides import apply_overrides, parse_override
from embrew.settings.yaml_files import dump_yaml, parse_yaml
from tests.characters import CHARACTERS

FOLDER = Path(str(resources.files("embrew") / "recipes"))
FILES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml"))
SHIPPED = [name for name in FILES if not name.startswith("launch/")]
NANO = "llm2comp/nano"


# Shipped recipes


def test_every_shipped_yaml_is_listed():
    launches = [name for name in FILES if name not in SHIPPED]
    assert launches == list_launches() == ["launch/ddp", "launch/fsdp2", "launch/ray-serve", "launch/zero2"]
    assert list_recipes() == SHIPPED
    assert {name.partition("/")[0] for name in SHIPPED} == {path.name for path in FOLDER.iterdir()} - {"launch"}
    assert {"llm2comp/nano", "baselines/mean"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_load_and_survive_a_round_trip(name, tmp_path):
    recipe = Recipe.load(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml(), encoding="utf-8")
    again = Recipe.load(path)
    assert again == recipe
    assert again.differing_keys(recipe.resolved()) == []
    assert [again.stage_hash(i) for i in range(len(recipe.stages))] == [
        recipe.stage_hash(i) for i in range(len(recipe.stages))
    ]


def test_papers_figures():
    # Learning to Compress (arXiv 2511.17129), appendix 2.1.
    recipe = Recipe.load("llm2comp/paper-llama2-7b")
    assert recipe.encoder.memory_tokens == 8
    assert recipe.encoder.train_embeddings == "full"
    assert recipe.encoder.lora is not None
    assert (recipe.encoder.lora["r"], recipe.encoder.lora["lora_alpha"]) == (16, 32)
    assert "k_proj" not in recipe.encoder.lora["target_modules"]
    rates = [(stage.training["learning_rate"], stage.training["weight_decay"]) for stage in recipe.stages]
    assert rates == [(1e-4, 1e-5), (3e-5, 1e-3), (1e-4, 3e-4)]
    sizes = [
        stage.training["max_steps"]
        * (stage.batch.size if stage.batch else stage.training["per_device_train_batch_size"])
        for stage in recipe.stages
    ]
    assert sizes == [32_000, 128_000, 204_800]  # 0.36 million samples together, as table 2 says
    assert sum(sizes) == pytest.approx(0.36e6, rel=0.02)
    assert [(stage.adapter, stage.train_memory) for stage in recipe.stages[1:]] == [("merge", False)] * 2
    assert len(recipe.stages[2].datasets) == 14
    for stage in recipe.stages:  # the rate never falls below 1e-5
        lowest = stage.training["learning_rate"] * stage.training["lr_scheduler_kwargs"]["min_lr_ratio"]
        assert lowest == pytest.approx(1e-5, rel=1e-3)


# Learning to Compress: Unlocking the Potential of LLMs for Text Representation (arXiv 2511.17129), Table 3:
# instructions of the fine-tuning data (the E5 collection, as in LLM2Vec). Two instructions: both are used for that set.


def test_importing_recipes_and_the_command_line_opens_no_heavy_library():
    code = (
        "import sys, embrew.recipe, embrew.cli; embrew.recipe.Recipe.load('llm2comp/nano'); "
        "print([m for m in ('torch', 'transformers', 'peft', 'datasets', 'numpy', 'sentence_transformers') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Where recipes come from


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("encoder:\n  model: nano\n pooling: 3\n", r"r\.yaml:3: "),
        ("encoder:\n  model: nano\n  model: other\n", r"r\.yaml:3: the key 'model' occurs twice"),
        ("encoder: {model: nano\n", r"r\.yaml:2: "),
        ("seed: 1\n3: x\n", r"r\.yaml:2: the key 3 is not a string"),
        ("- a\n", "a recipe is a mapping with the keys encoder, stages"),
        ("seed: !!python/object/apply:os.getcwd []\n", r"r\.yaml:1: could not determine a constructor"),
        ("", r"r\.yaml is empty"),
        ("3", "a recipe is a mapping"),
    ],
)
def test_broken_yaml_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Recipe.load(path)


def test_a_wrong_key_in_a_file_names_its_line(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("encoder:\n  model: nano\n  pooling: {mode: mean}\n  templatex: x\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"r\.yaml:4: unknown key encoder\.templatex; valid keys: model, .*'template'"):
        Recipe.load(path)


# Errors: the key, what was given, what is allowed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder.poolng.mode=mean", r"unknown key encoder\.poolng; valid keys: model, .*; did you mean 'pooling'\?"),
        ("stages.0.data.pathx=x", r"unknown key stages\.0\.data\.pathx; valid keys: path, .*; did you mean 'path'\?"),
        ("stages.0.data=[{path: a}, {pathy: b}]", r"stages\.0\.data\.1\.path is missing; it is required"),
        ("encoder.dtype=bfloat", r"encoder\.dtype='bfloat'; .*did you mean 'bfloat16'\?"),
        ("encoder.pooling=mean", r"encoder\.pooling='mean'; allowed: a mapping with keys mode, over"),
        ("encoder.memory_tokens=eight", r"encoder\.memory_tokens='eight'; allowed: a valid integer"),
        ("encoder.normalize=no", r"encoder\.normalize='no'; allowed: a valid boolean"),
        (
            "stages.supervised.batch={size: 8, mini_batch_size: 2, mini_batch_num_tokens: 64}",
            "give mini_batch_size or mini_batch_num_tokens, not both",
        ),
        ("stages.0.data.weight=2", "weight, ratio and mix need several data sets; there is one"),
        (
            "stages.0.data=[{path: a, weight: 1, ratio: 0.1}, {path: b, weight: 1}]",
            "give weights .* or ratios .*, not both",
        ),
        ("stages.0.data=[{path: a, weight: 1}, {path: b}]", "1 of 2 data sets have a weight; give all, or none"),
        (
            "stages.0={name: x, objective: {type: contrastive}, mix: {temperature: 0.5}, "
            "data: [{path: a, weight: 1}, {path: b, weight: 2}]}",
            "give weights, or mix.temperature, not both",
        ),
        ("stages.0.data.path=3", r"stages\.0\.data\.path=3; allowed: a valid string or a valid list$"),
        ("stages.0.data=[]", r"stages\.0\.data=\[\]; .*at least 1"),
        ("stages.0.objective={temperature: 1}", r"stages\.0\.objective: type=None; give an objective's name"),
        ("stages.0.adapter=new", r"stages\.0\.adapter='new'; choose from continue, merge"),
        ("stages.0.name=a/b", r"stages\.0\.name: 'a/b' names a folder"),
        ("stages.0.name=SUPERVISED", r"stages: 2 stages are named 'supervised'"),
        ("seed=-1", r"seed=-1; allowed: greater than or equal to 0"),
        ("encoder=null", r"encoder=None; allowed: a mapping with keys model, "),
    ],
)
def test_errors_name_the_override_the_key_and_what_is_allowed(override, message):
    with pytest.raises(ValueError, match=message) as error:
        Recipe.load(NANO, [override])
    assert str(error.value).startswith(f"override {override!r}: ")
    assert "pydantic" not in str(error.value)


# Overrides


def test_overrides_set_values_by_number_and_by_name():
    recipe = Recipe.load(
        NANO,
        [
            "stages.0.training.learning_rate=5e-5",
            "stages.unsupervised.training.max_steps=2",
            "stages.unsupervised.batch.size=8",
            "encoder.max_length={query: 9, document: 10}",
            "encoder.lora=null",
            "stages.supervised.data.columns.query=question",
            "encoder.prompts.query=Given a = b, find: ",
        ],
    )
    assert recipe.stages[0].training["learning_rate"] == 5e-5
    assert isinstance(recipe.stages[0].training["learning_rate"], float)
    assert recipe.stages[1].training["max_steps"] == 2
    assert recipe.stages[1].batch is not None
    assert recipe.stages[1].batch.size == 8
    assert (recipe.encoder.max_length.query, recipe.encoder.max_length.document) == (9, 10)
    assert recipe.encoder.lora is None
    assert recipe.stages[2].datasets[0].columns == {"query": "question"}
    assert recipe.encoder.prompts.query == "Given a = b, find: "


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder.model", "write key.path=value"),
        ("--encoder.model=x", "write key.path=value"),
        ("=x", "write key.path=value"),
        ("encoder..model=x", "write key.path=value"),
        ("encoder.model.x=1", "encoder.model is 'nano', which has no keys"),
        ("stages.7.name=x", r"stages has no item '7'; choose from 0 to 2 or by name: compress, unsupervised"),
        ("stages.compressx.name=x", "stages has no item 'compressx'.*did you mean 'compress'"),
        ("encoder.lora={r: 3", r"override .*:1: "),
    ],
)
def test_overrides_that_cannot_be(override, message):
    with pytest.raises(ValueError, match=message):
        Recipe.load(NANO, [override])


def test_data_that_is_not_here_is_replaced_by_an_override_that_the_error_names(monkeypatch):
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    (stage, *_) = Recipe.load("llm2comp/qwen3-0.6b").stages
    message = r"'Salesforce/wikitext' is no file .* give 'stages.compress.data=\{path: FILE\}'$"
    with pytest.raises(FileNotFoundError, match=message):
        build.datasets(stage, build.objective(stage.objective), None)
    recipe = Recipe.load("llm2comp/qwen3-0.6b", ["stages.compress.data={path: FILE}"])
    assert recipe.stages[0].datasets[0].path == "FILE"


def test_data_that_can_be_fetched_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the Hub is asked")

    monkeypatch.setattr("datasets.load_dataset", asked)
    monkeypatch.chdir(tmp_path)
    (stage,) = Recipe.load("baselines/nli-nano").stages
    with pytest.raises(FileNotFoundError) as raised:
        build.datasets(stage, build.objective(stage.objective), None)
    assert str(raised.value) == (
        "no file or folder 'data/nli-triplets'; run `embrew data fetch nli-triplets`, which downloads it; for data of "
        "yours, give 'stages.supervised.data={path: FILE}'"
    )
    assert data_identity("data/nli-triplets", split="train", sha256=str) == {"name": "nli-triplets"}


ESE = "ese/nano"
DIMS = "stages.espresso.objective.dims=[64, 256]"


@pytest.mark.parametrize("stage", ["espresso", "0"])
def test_another_type_of_objective_drops_the_keys_of_the_recipe_that_it_lacks(stage, caplog):
    recipe = build.load_recipe(ESE, [f"stages.{stage}.objective.type=matryoshka", DIMS])
    build.check_recipe(recipe)
    base = Recipe.load(ESE).stages[0].objective["base"]
    assert recipe.stages[0].objective == {"type": "matryoshka", "dims": [64, 256], "base": base}
    (record,) = caplog.records
    place = f"stages.{stage}.objective.type=matryoshka"
    assert record.getMessage() == f"{place}: dropped compression_size of the recipe, which matryoshka does not have"


@pytest.mark.parametrize("place", [0, 1])
def test_a_key_that_the_user_gives_and_the_type_lacks_is_an_error(place):
    overrides = ["stages.espresso.objective.type=matryoshka", DIMS]
    overrides.insert(place, "stages.espresso.objective.compression_size=32")
    with pytest.raises(ValueError, match="matryoshka has no key 'compression_size'"):
        build.check_recipe(build.load_recipe(ESE, overrides))


def test_an_override_reaches_one_place_of_an_alias_only():
    values = parse_yaml("stages:\n- {name: a, training: &t {x: 1}}\n- {name: b, training: *t}\n- {name: c, <<: *t}\n")
    assert values["stages"][2] == {"x": 1, "name": "c"}
    changed = apply_overrides(values, ["stages.a.training.x=2"])
    assert [stage["training"]["x"] for stage in changed["stages"][:2]] == [2, 1]
    assert values["stages"][0]["training"]["x"] == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1E6", 1e6),
        ("-3", -3),
        ("true", True),
        ("null", None),
        ("", None),
        ("no", "no"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("$DATA/a.jsonl", "$DATA/a.jsonl"),
        ("'5'", "5"),
        ("Find this: ", "Find this: "),
        ("{a: b}", {"a": "b"}),
        ("[q_proj, v_proj]", ["q_proj", "v_proj"]),
    ],
)
def test_plain_words_mean_what_they_look_like(text, value):
    keys, got = parse_override(f"a.b={text}")
    assert keys == ["a", "b"]
    assert got == value
    assert type(got) is type(value)


TEXT = st.text(CHARACTERS, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
@settings(max_examples=40)
def test_yaml_reads_back_what_it_wrote(value):
    assert parse_yaml(dump_yaml(value)) == value


KEYS = st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), min_size=1, max_size=4)


@given(KEYS, st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=40)
def test_any_number_can_be_set_at_any_path(keys, value):
    changed = apply_overrides({}, [f"{'.'.join(keys)}={json.dumps(value)}"])
    for key in keys:
        changed = changed[key]
    assert changed == value
    assert type(changed) is type(value)


# Hashes and differences


def test_the_hash_covers_encoder_earlier_stages_and_seed_and_nothing_else():
    base = Recipe.load(NANO)

    def same(override, index):
        return Recipe.load(NANO, [override]).stage_hash(index) == base.stage_hash(index)

    assert [same("stages.unsupervised.batch.size=8", i) for i in range(3)] == [True, False, False]
    assert [same("encoder.normalize=false", i) for i in range(3)] == [False] * 3
    assert [same("seed=43", i) for i in range(3)] == [False] * 3
    assert [same("evaluation=null", i) for i in range(3)] == [True] * 3
    assert len({base.stage_hash(i) for i in range(3)}) == 3


def test_differing_keys():
    base = Recipe.load(NANO)
    other = Recipe.load(NANO, ["encoder.lora.r=4", "stages.supervised.batch.size=8", "stages.0.training.tf32=true"])
    everywhere = ["encoder.lora.r", "stages.0.training.tf32", "stages.2.batch.size"]
    assert base.differing_keys(other.resolved()) == everywhere == other.differing_keys(base.resolved())
    assert base.differing_keys(other.resolved(), index=1) == everywhere[:2]
    assert base.differing_keys(other.resolved(0), index=0) == everywhere[:2]
    assert base.differing_keys(Recipe.load(NANO, ["stages=[]"]).resolved()) == ["stages"]
    assert base.differing_keys(json.loads(json.dumps(base.resolved()))) == []
