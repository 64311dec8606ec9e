"""The shipped configurations of accelerate's launcher are ones that it reads, and mean what their names say."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from embrew.cli.recipe import read_launch
from embrew.recipe import list_launches
from embrew.training.sharding import sharding_requested

KINDS = {"launch/ddp": "MULTI_GPU", "launch/fsdp2": "FSDP", "launch/zero2": "DEEPSPEED"}


def environment(name: str, place: Path) -> dict[str, str]:
    """What the launcher would tell each process."""
    (place / "launch.yaml").write_text(read_launch(name))
    arguments = ["--config_file", str(place / "launch.yaml"), "-m", "embrew", "train", "RECIPE"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    assert args.num_processes == 8
    if name != "launch/zero2":
        return prepare_multi_gpu_env(args)
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    return prepare_deepspeed_cmd_env(args)[1]


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it(name, tmp_path):
    assert set(list_launches()) == {*KINDS, "launch/ray-serve"}
    variables = environment(name, tmp_path)
    config = load_config_from_file(str(tmp_path / "launch.yaml"))  # refuses keys that it does not know
    assert config.distributed_type == KINDS[name]
    known = set(vars(launch_command_parser().parse_args(["script.py"])))
    for block in ("fsdp_config", "deepspeed_config"):
        assert set(yaml.safe_load(read_launch(name)).get(block, {})) <= known
    assert (variables.get("ACCELERATE_USE_FSDP") == "true") == (name == "launch/fsdp2")
    assert (variables.get("ACCELERATE_USE_DEEPSPEED") == "true") == (name == "launch/zero2")
    with patch.dict(os.environ, variables), sharding_requested() as sharded:
        assert sharded == (name == "launch/fsdp2")


def test_stage_two_with_the_recipes_own_figures(tmp_path):
    variables = environment("launch/zero2", tmp_path)
    assert variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "2"
    assert variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == variables["ACCELERATE_GRADIENT_CLIPPING"] == "auto"
