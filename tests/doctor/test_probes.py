"""Each probe, with what it looks at replaced."""

from __future__ import annotations

import getpass
import json
import os
import pwd
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from embrew import free_memory, threads
from embrew.doctor import devices, disk, machine, nano, packages
from embrew.doctor.private import without_private
from embrew.doctor.run import as_report


def test_versions_against_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"new": "3.0", "exact": "2.0", "old": "1.9", "build": "2.13.0+cpu", "before": "2.1.0rc1"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(packages.metadata, "version", version)
    found = {name: packages.needed(Requirement(f"{name}>=2.0")) for name in (*installed, "absent")}
    assert {name: one.status for name, one in found.items()} == {
        **dict.fromkeys(("new", "exact", "build", "before"), "ok"),
        **dict.fromkeys(("old", "absent"), "failed"),
    }
    assert (
        found["old"].value == "1.9; embrew needs old>=2.0" and found["old"].advice == "pip install --upgrade 'old>=2.0'"
    )
    assert found["absent"].value == "not installed" and found["absent"].advice == "pip install 'absent>=2.0'"


def distribution(*requires: str) -> Any:
    extras = [requirement.partition("extra == ")[2].strip("'\"") for requirement in requires]
    about = SimpleNamespace(get_all=lambda _: list(dict.fromkeys(extra for extra in extras if extra)))
    return SimpleNamespace(version="1", requires=list(requires), metadata=about)


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """None has to be there; one that is there and too old is named."""
    wanted = distribution(
        "numpy>=1", "numpy>=1; extra == 'one'", "nowhere>=1; extra == 'two'", "numpy>=99; extra == 'three'"
    )
    installed = metadata.distribution
    monkeypatch.setattr(packages.metadata, "distribution", lambda name: wanted if name == "embrew" else installed(name))
    one, two, three = packages.extras()
    assert (one.name, one.status) == ("extra one", "ok") and one.value.startswith("installed (numpy ")
    assert (two.status, two.value) == ("ok", "not installed")
    assert three.status == "warning" and three.advice == "pip install --upgrade 'embrew[three]'"
    assert [finding.name for finding in packages.packages()] == ["embrew", "numpy"], "an extra is not needed"


def test_a_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "distribution", absent)
    (found,) = packages.packages()
    assert found.status == "failed" and "pip install" in found.advice


def test_cores_are_those_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    assert threads.cores() == 16
    for quota, cores in (("max 100000", 16), ("250000 100000", 3), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(quota)
        assert threads.cores() == cores


def test_load_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    for load, status in ((0.5, "ok"), (9.0, "warning")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        assert [finding.status for finding in machine.cpu()] == ["ok", status]
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000000000")
    (tmp_path / "memory.current").write_text("2500000000")
    found = machine.memory()
    assert found.status == "warning" and found.value == "0.5 of 3.0 GB free"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = devices.threads()
    assert found.status == "warning" and found.advice.startswith("set OMP_NUM_THREADS=2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert devices.threads().status == "ok"


def test_bfloat16_is_named_as_native_or_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "pick_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(devices, "SIZE", 64)  # one product of the usual size takes seconds where bfloat16 is emulated
    for there, said in ((True, "native"), (False, "emulated")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: {"avx512_bf16": there, "avx2": True})
        (found,) = devices.dtypes()
        assert found.value.startswith(said) and found.details["native"] is there
        assert "avx2" in devices.instructions().value
        assert len(list(devices.multiply())) == 1 + there


def test_a_driver_too_old_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12040, raising=False)
    (found,) = devices.accelerators()
    assert found.status == "warning" and "the driver is 12.4" in found.value
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 0, raising=False)
    (found,) = devices.accelerators()
    assert found.status == "ok", "a machine without a GPU"


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="Card", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10_000_000_000, 16_000_000_000))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for native, status in ((True, "ok"), (False, "warning")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda native=native, **_: native)
        (found,) = devices.accelerators()
        assert found.status == status and found.value == "Card, 10.0 of 16.0 GB free, compute 7.5"


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((50e9, "ok"), (1e9, "warning"), (1e6, "failed")):
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=int(free)))
        found = list(disk.space(tmp_path / "not there yet"))
        assert [finding.status for finding in found] == [status] * 3
        assert [finding.name for finding in found] == ["disk, output", "disk, HF_HOME", "disk, TMPDIR"]


def test_what_the_file_system_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by trying; that of temporary files here can do everything. Nothing stays behind."""
    (found,) = disk.file_system(tmp_path)
    assert found.status == "ok" and all(found.details.values()) and len(found.details) == 4
    assert not list(tmp_path.iterdir())

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(disk, "exchange", lambda *_: False)
    monkeypatch.setattr(disk.fcntl, "flock", refused)
    monkeypatch.setattr(disk.os, "link", refused)
    monkeypatch.setattr(disk, "flush", refused)
    found = list(disk.file_system(tmp_path))
    assert [one.value for one in found] == [f"no {what}" for what in disk.TRIED]
    assert {one.status for one in found} == {"warning"} and all(one.advice for one in found)
    (found,) = disk.file_system(tmp_path / "absent")
    assert found.status == "failed" and "may write to" in found.advice


def test_locks_that_do_nothing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.fcntl, "flock", lambda *_: None)
    assert [one.value for one in disk.file_system(tmp_path)] == ["no locks"]


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    monkeypatch.setenv("EMBREW_DATA", str(tmp_path / "absent"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = {finding.name: finding for finding in machine.environment()}
    assert found["Hugging Face token"].value == "yes" and "secret-of-mine" not in str(found)
    assert found["EMBREW_DATA"].status == "warning" and "HF_HUB_OFFLINE=1" in found["environment"].value
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))


def test_what_is_private_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("MY_TOKEN", "0123456789")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    given = {
        "path": "/home/alice/models, /home/alicea and /data/alice/run",
        "/home/alice": ["hf_ABCDEFGHIJKL", "https://alice:pass@host/simple", 3, None, True],
        "word": "a 0123456789 b",
    }
    assert without_private(given) == {
        "path": "~/models, /home/alicea and /data/USER/run",
        "~": ["***", "https://***host/simple", 3, None, True],
        "word": "a *** b",
    }
    monkeypatch.setattr(getpass, "getuser", lambda: (_ for _ in ()).throw(KeyError("no such user id")))
    assert without_private("/data/alice") == "/data/alice"


def test_a_report_is_plain_json() -> None:
    report = as_report([packages.python(), machine.system()])
    assert json.loads(json.dumps(report)) == report and report["status"] == "ok" and len(report["findings"]) == 2


@pytest.fixture
def clean() -> Any:
    nano.opened.cache_clear()
    yield
    nano.opened.cache_clear()


@pytest.mark.usefixtures("clean")
def test_the_self_test_holds_here() -> None:
    """And another weight is noticed."""
    for probe in (nano.open_nano, nano.vectors, nano.padding, nano.attention):
        found = probe()
        assert found.status == "ok", found
    with torch.no_grad():
        nano.opened().backbone.causal_lm.get_input_embeddings().weight[100:4000] += 0.05
    assert nano.vectors().status == "failed"


@pytest.mark.parametrize("wrong", ["vectors", "padding", "not finite"])
def test_the_self_test_notices(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is for: other vectors, companions that matter, NaN."""
    known = np.array(json.loads(nano.REFERENCE.read_text())["vectors"], dtype=np.float32)
    change: dict[str, Any] = {"vectors": 0.001, "padding": 0, "not finite": np.nan}

    def encode(texts: list[str], **_: Any) -> Any:
        rows = known[[nano.TEXTS.index(text) for text in texts]]
        return rows + (0.001 * len(texts) if wrong == "padding" else change[wrong])

    monkeypatch.setattr(nano, "opened", lambda: SimpleNamespace(encode=encode, device=torch.device("cpu")))
    found = nano.padding() if wrong == "padding" else nano.vectors()
    assert found.status == "failed" and found.advice


@pytest.mark.slow
def test_training_in_the_self_test() -> None:
    nano.opened.cache_clear()
    assert [(one.name, one.status) for one in nano.training()] == [
        (f"self-test: {name}", "ok") for name in ("training", "saving", "export")
    ]
    assert nano.half().status == "ok" and nano.speed().details["texts_per_second"] > 0


def test_without_a_known_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user id has no entry in /etc/passwd."""

    def unknown(*_: object) -> None:
        raise KeyError

    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert without_private({"path": "/data/x"}) == {"path": "/data/x"}
