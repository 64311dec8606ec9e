"""Read data row by row: files (see `embrew.data.formats`), folders of them, and data sets of the Hugging Face Hub."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import overload

from embrew.data.formats import SUFFIXES, TABLES, records
from embrew.data.record import Bad, Record
from embrew.data.rejects import Rejects
from embrew.data.saved import is_saved, saved_files
from embrew.files.public_paths import check_path_known
from embrew.files.reading import Place

logger = logging.getLogger(__name__)

DEV_SPLITS = ("dev", "validation", "valid")
SPLITS = ("train", *DEV_SPLITS, "test")
_FOLDERS = {
    "EMBREW_DATA": "a folder of public data sets, which embrew does not ship (docs/how-to/own-data.md)",
    "EMBREW_DEMO": "the folder data/ that embrew's demo (make demo) collects from installed packages",
}
_INSTEAD = "'stages.NAME.data={path: FILE}' evaluation=null; recipe llm2comp/qwen3-0.6b reads public data of the Hub"
_SHARD = r"(-\d+(-of-\d+)?)?"  # train-00000.jsonl.gz, train-00000-of-00002.parquet


def expand(path: str | Path) -> str:
    """Replace `$NAME` and `${NAME}` by environment variables, and a leading `~` by the home folder.

    Examples:
        >>> os.environ["CORPORA"] = "/data"
        >>> expand("$CORPORA/STSB")
        '/data/STSB'
    """
    text = str(path)
    check_path_known(text)
    for name in re.findall(r"\$\{?(\w+)\}?", text):
        if not os.environ.get(name):
            what = f", {_FOLDERS[name]}, or data of yours: {_INSTEAD}" if name in _FOLDERS else ""
            raise ValueError(
                f"{text!r} needs the environment variable {name}, which is not set; export {name}=FOLDER{what}"
            )
    text = os.path.expandvars(text)
    return str(Path(text).expanduser()) if text.startswith("~") else text  # Path would drop the "./" of a local path


def public_name(path: str | Path) -> tuple[str, bool]:
    """Return a data set's name without the folders of this machine, and whether it is a data set of the Hub."""
    text = expand(path)
    return (Path(text).resolve().name, False) if Path(text).exists() else (text, True)


def require_regular(path: Place) -> None:
    """Raise for what is neither a file nor a folder, since data are read more than once, by name.

    Raises:
        ValueError: it is a named pipe, a device, or a link to nothing.
    """
    if not isinstance(path, Path) or path.is_file() or path.is_dir() or not (path.exists() or path.is_symlink()):
        return
    what = "a named pipe or a device" if path.exists() else f"a link to {path.readlink()}, which does not exist"
    raise ValueError(f"{path} is {what}; data are read from regular files: write them into a file, and give that")


def read(
    path: str | Path,
    *,
    name: str | None = None,
    split: str = "train",
    revision: str | None = None,
    rejects: Rejects | None = None,
) -> Iterator[Record]:
    """Yield the rows of a file, a folder's split, or a data set of the Hub; `rejects` gets what cannot be read."""
    rejects = rejects or Rejects()
    text = expand(path)
    local = Path(text)
    require_regular(local)
    if not local.exists():
        yield from _read_hub(text, name, split, revision)
        return
    if name is not None or revision is not None:
        logger.warning("%s is local: name=%r and revision=%r have no effect", text, name, revision)
    for file in [local] if local.is_file() else split_files(local, split):
        for item in records(file):
            if isinstance(item, Bad):
                rejects(item)
            else:
                yield item


def stem(path: Place) -> str:
    """Return a file name without the data suffix: `train.jsonl.gz` gives `train`."""
    for suffix in sorted((*SUFFIXES, *TABLES), key=len, reverse=True):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return PurePosixPath(path.name).stem


@overload
def data_files(folder: Path) -> list[Path]: ...
@overload
def data_files(folder: Place) -> list[Place]: ...
def data_files(folder: Place) -> list[Path] | list[Place]:
    """Return the data files of a folder (or of its `data/` folder, as on the Hub), sorted by name.

    These are JSON Lines, text and Parquet files, and CSV, TSV and JSON files of splits without one of the former; all
    CSV, TSV and JSON files if there are no others; the files of `datasets.save_to_disk`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file with such a name is a named pipe, or a broken link.
    """
    if is_saved(folder):
        return [file for files in saved_files(folder).values() for file in files]
    for place in (folder, folder / "data"):
        files, tables = _with_suffix(place, SUFFIXES), _with_suffix(place, TABLES)
        there = {_split(file) for file in files}
        found = files + [file for file in tables if _split(file) in SPLITS and _split(file) not in there]
        if found or tables:
            return sorted(found or tables)
    known = ", ".join((*SUFFIXES, *TABLES))
    raise FileNotFoundError(f"{folder} holds no data file; expected files ending in {known}, or a saved data set")


def unread_files(folder: Path) -> list[str]:
    """Return the data files of a folder and its subfolders that `data_files` leaves out, by path in the folder."""
    if is_saved(folder):
        return []
    read = {*data_files(folder)}
    endings = (*SUFFIXES, *TABLES)
    others = (file for file in folder.rglob("*") if file.name.lower().endswith(endings) and file.is_file())
    return sorted(file.relative_to(folder).as_posix() for file in others if file not in read)


def _with_suffix(folder: Place, suffixes: tuple[str, ...]) -> list[Place]:
    """Return files by suffix, without the relevance judgements of BEIR."""
    files = [file for file in folder.glob("*") if file.name.endswith(suffixes) and not file.is_dir()]
    for file in files:
        require_regular(file)
    return [file for file in files if not file.name.startswith("qrels.")]


def _split(file: Place) -> str:
    return re.sub(_SHARD + "$", "", stem(file))


def splits(folder: Path) -> list[str]:
    """Return the splits of a folder: `train-00000.jsonl` and `dev.jsonl` give `["dev", "train"]`."""
    return sorted(saved_files(folder) if is_saved(folder) else {_split(file) for file in data_files(folder)})


@overload
def find_file(folder: Path, name: str) -> Path | None: ...
@overload
def find_file(folder: Place, name: str) -> Place | None: ...
def find_file(folder: Place, name: str) -> Place | None:
    """Return the file `name` of a folder: JSON Lines, else Parquet, CSV, TSV or JSON; None if there is none."""
    suffixes = (*SUFFIXES[:2], ".parquet", *TABLES)
    return next((file for suffix in suffixes if (file := folder / f"{name}{suffix}").is_file()), None)


def split_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split; all files are `train` if none is named after a split."""
    if is_saved(folder):
        chosen = saved_files(folder).get(split, [])
    else:
        files = data_files(folder)
        chosen = [file for file in files if re.fullmatch(re.escape(split) + _SHARD, stem(file))]
        if not chosen and split == "train" and not set(splits(folder)) & set(SPLITS):
            chosen = files
    if not chosen:
        raise FileNotFoundError(f"{folder} has no split {split!r}; it has {', '.join(splits(folder))}")
    return chosen


def _read_hub(path: str, name: str | None, split: str, revision: str | None) -> Iterator[Record]:
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path) or path.endswith((*SUFFIXES, *TABLES)):
        raise FileNotFoundError(f"no file or folder {path!r}")
    import datasets

    try:
        dataset = datasets.load_dataset(path, name, split=split, revision=revision)
    except ConnectionError as error:
        raise FileNotFoundError(f"{path!r} is no file or folder here, and the Hub is not reached: {error}") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path!r} is no file or folder here and no data set of the Hub: {error}") from error
    source = " ".join(part for part in (path, name, split) if part)
    for number, values in enumerate(dataset, start=1):
        yield Record(values, source, number)
