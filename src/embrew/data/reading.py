"""Read data row by row, from files, folders of them and data sets of the Hub; and identify them by their content.

A file's name tells its split: `train-00000-of-00002`, `Test`, `my-dev`, `data.train`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

from embrew.data.documents import PROSE
from embrew.data.formats import SUFFIXES, TABLES, Bad, Record, records
from embrew.data.rejects import Rejects
from embrew.data.sets import fetch_hint
from embrew.files.checksums import digest_of
from embrew.files.names import base_name, check_path_known
from embrew.files.reading import Place, content_of, read_json

DEV_SPLITS = ("dev", "validation", "valid", "val")
SPLITS = ("train", *DEV_SPLITS, "test")
_ALIASES = {"training": "train", "testing": "test"}
SHARD = r"(-\d+(-of-\d+)?)?"  # train-00000.jsonl.gz, train-00000-of-00002.parquet
_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+)?$")  # also train_1, train1


def words(name: str) -> list[str]:
    """Return the words of a name in lower case, by its separators and capitals: `stsTest_1` gives `sts`, `test`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_by_split(stems: Iterable[str]) -> dict[str, list[str]]:
    """Return the stems of a folder's files by split; a name that tells none is a split of its own.

    A split is a name without its number, in any case. If no file has this name, it is the only name with the word
    for the split and for no other one. Several such names tell nothing: each is a split of its own.

    Examples:
        >>> names_by_split(["Train-0", "Train-1", "my_test", "notes"])
        {'train': ['Train-0', 'Train-1'], 'test': ['my_test'], 'notes': ['notes']}
    """
    stems = list(stems)
    names = dict.fromkeys(map(without_number, stems))
    splits = {name: split for name in names if (split := known_split(name))}
    for split in SPLITS:
        having = [name for name in names if name not in splits and {*words(name)} & {*SPLITS} == {split}]
        if split not in splits.values() and len(having) == 1:
            splits[having[0]] = split
    by_split: dict[str, list[str]] = {}
    for stem in stems:
        split = splits.get(without_number(stem)) or re.sub(SHARD + "$", "", stem)
        by_split.setdefault(split, []).append(stem)
    return by_split


def without_number(stem: str) -> str:
    """Return a stem without the number at its end: `train-00000-of-00002` and `train_1` give `train`."""
    return _NUMBER.sub("", stem)


def known_split(name: str) -> str:
    """Return the split that a name is, in any case, or an empty text: `Train` and `training` give `train`."""
    name = _ALIASES.get(name.lower(), name.lower())
    return name if name in SPLITS else ""


logger = logging.getLogger(__name__)

_DATA = "a folder of public data sets, which embrew does not ship (benchmarks/data.md)"
REPAIR = "save the data set again"
HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
AnyPlace = TypeVar("AnyPlace", Path, Place)


def expand(path: str | Path) -> str:
    """Replace `$NAME` and `${NAME}` by environment variables, and a leading `~` by the home folder.

    The name of a file or folder that exists is not changed.

    Examples:
        >>> os.environ["CORPORA"] = "/data"
        >>> expand("$CORPORA/STSB")
        '/data/STSB'
    """
    text = str(path)
    check_path_known(text)
    if os.path.lexists(text):
        return text
    for name in re.findall(r"\$\{?(\w+)\}?", text):
        if not os.environ.get(name):
            what = f", {_DATA}, or give data of yours" if name == "EMBREW_DATA" else ""
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
    for file in local_files(local, split):
        for item in records(file):
            if isinstance(item, Bad):
                rejects(item)
            else:
                yield item


def local_files(path: Path, split: str) -> list[Path]:
    """Return the files that `read` reads: a file, or those of a folder's split; warn of others, once.

    Raises:
        FileNotFoundError, ValueError: as `split_files`.
    """
    require_regular(path)
    files = [path] if path.is_file() else split_files(path, split)
    if path.is_dir() and split in SPLITS and not is_saved(path):
        _warn_unread(path, tuple(name for name in _other_names(path) if name not in {file.name for file in files}))
    return files


def corpus_files(path: AnyPlace) -> list[AnyPlace]:
    """Return the files of a corpus in order: the file, the `corpus` of a BEIR folder, or all data files of a folder.

    Markdown and HTML files of a folder are read if its other files are text, or if there are no others.

    Raises:
        FileNotFoundError: there is no such file or folder, or no file to read in it.
    """
    require_regular(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"no file or folder {str(path)!r}; give a path, or a URL of s3://, gs:// or hf://")
    corpus = find_file(path, "corpus")
    if corpus is not None:
        return [corpus]
    prose = _with_suffix(path, (*PROSE, *map(str.upper, PROSE)))
    try:
        files = data_files(path)
    except FileNotFoundError:
        if not prose:
            raise
        files = []
    return sorted(files + prose) if all(".txt" in file.suffixes for file in files) else files


def id_prefixes(files: Sequence[Place], folder: Place) -> list[str]:
    """Return, for each file of a corpus, what comes before a row's number where the row has no id.

    It is empty for a file alone; else the file's name, or its path where several have one name, as the splits of a
    saved data set.
    """
    if len(files) < 2:
        return [""] * len(files)
    unique = len({file.name for file in files}) == len(files)
    return [f"{file.name if unique else str(file).removeprefix(str(folder)).lstrip('/' + os.sep)}:" for file in files]


def stem(path: Place) -> str:
    """Return a file name without the data suffix: `train.jsonl.gz` gives `train`."""
    for suffix in sorted((*SUFFIXES, *TABLES), key=len, reverse=True):
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return PurePosixPath(path.name).stem


def data_files(folder: AnyPlace) -> list[AnyPlace]:
    """Return the data files of a folder (or of its `data/` folder, as on the Hub), sorted by name.

    These are JSON Lines, text and Parquet files, and CSV, TSV and JSON files of splits without one of the former; all
    CSV, TSV and JSON files if there are no others; the files of `datasets.save_to_disk`. Hidden files are left out.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file with such a name is a named pipe, or a broken link.
    """
    if is_saved(folder):
        return [file for parts in saved_files(folder).values() for file in parts]
    for directory in (folder, folder / "data"):
        files: list[AnyPlace] = _with_suffix(directory, SUFFIXES)
        tables: list[AnyPlace] = _with_suffix(directory, TABLES)
        named = {"", *(known_split(without_number(stem(file))) for file in files)}
        chosen = files + [file for file in tables if known_split(without_number(stem(file))) not in named]
        if chosen and not files:  # with the name of a split, of tables alone the others are read if words tell theirs
            by_split = names_by_split(map(stem, tables))
            in_splits = {name for split in SPLITS for name in by_split.get(split, ())}
            chosen = [file for file in tables if stem(file) in in_splits]
        if chosen or tables:
            return sorted(chosen or tables)
    suffixes = ", ".join((*SUFFIXES, *TABLES))
    raise FileNotFoundError(f"{folder} holds no data file; expected files ending in {suffixes}, or a saved data set")


def _with_suffix(folder: AnyPlace, suffixes: tuple[str, ...]) -> list[AnyPlace]:
    """Return files by suffix, without the relevance judgements of BEIR."""
    files = [file for file in folder.glob("*") if file.name.endswith(suffixes) and not file.is_dir()]
    files = [file for file in files if not file.name.startswith((".", "qrels."))]
    for file in files:
        require_regular(file)
    return files


def splits(folder: Path) -> list[str]:
    """Return the splits of a folder: `train-00000.jsonl` and `my_dev.jsonl` give `["dev", "train"]`."""
    return sorted(saved_files(folder) if is_saved(folder) else names_by_split(map(stem, data_files(folder))))


def find_file(folder: AnyPlace, name: str) -> AnyPlace | None:
    """Return the file `name` of a folder: JSON Lines, else Parquet, CSV, TSV or JSON; None if there is none."""
    suffixes = (*SUFFIXES[:2], ".parquet", *TABLES)
    file = next((file for suffix in suffixes if (file := folder / f"{name}{suffix}").is_file()), None)
    if isinstance(folder, Path) and file is not None:
        others = [folder / f"{name}{suffix}" for suffix in suffixes if f"{name}{suffix}" != file.name]
        _warn_unread(folder, tuple(other.name for other in others if other.is_file()))
    return file


def is_beir(folder: Path) -> bool:
    """Return whether a folder holds a corpus and queries."""
    return folder.is_dir() and all(find_file(folder, name) for name in ("corpus", "queries"))


def qrels_files(folder: Path) -> dict[str, Path]:
    """Return the files of relevance judgements by split."""
    files: dict[str, Path] = {}
    for pattern, prefix in (("qrels/*.tsv*", ""), ("qrels.*.tsv*", "qrels.")):
        for file in sorted(folder.glob(pattern)):
            if file.name.endswith((".tsv", ".tsv.gz")) and not file.name.startswith("."):
                split = file.name.removesuffix(".gz").removesuffix(".tsv").removeprefix(prefix)
                if split in files:
                    raise ValueError(f"{folder} has the split {split!r} twice: {files[split].name} and {file.name}")
                files[split] = file
    return files


def qrels_file(folder: Path, split: str) -> Path:
    """Return the file of relevance judgements of a split."""
    files = qrels_files(folder)
    if split not in files:
        raise FileNotFoundError(f"{folder} has no qrels for split {split!r}; it has {', '.join(files) or 'none'}")
    return files[split]


def split_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split, see `names_by_split`; files that are numbers of one name are `train`.

    Raises:
        FileNotFoundError: there is no such split.
        ValueError: several names could be `train` and none is; or a file is there in two formats.
    """
    if is_saved(folder):
        chosen = saved_files(folder).get(split, [])
    else:
        files = data_files(folder)
        by_split = names_by_split(map(stem, files))
        names = by_split.get(split, [])
        chosen = [file for file in files if stem(file) in names or re.fullmatch(re.escape(split) + SHARD, stem(file))]
        if not chosen and split == "train" and not {*by_split} & {*SPLITS}:
            if len({without_number(stem(file)) for file in files}) > 1:
                raise ValueError(
                    f"{folder} has several files that could be the split 'train': {_listed([f.name for f in files])}; "
                    "name one train and others dev or test, or give the files that are meant"
                )
            chosen = files
        twice = [file.name for file in chosen if sum(stem(file) == stem(other) for other in chosen) > 1]
        if twice:
            raise ValueError(f"{folder} has a file of the split {split!r} twice: {_listed(twice)}; keep one of them")
    if not chosen:
        others = [] if is_saved(folder) else _other_names(folder)
        unread = f" (in none of dev, test and train: {_listed(others)})" if others else ""
        raise FileNotFoundError(f"{folder} has no split {split!r}; it has {', '.join(splits(folder))}{unread}")
    return chosen


def _other_names(folder: Path) -> list[str]:
    """Return the names of a folder's data files that are in no known split, and of its tables that are not data."""
    files = data_files(folder)
    by_split = names_by_split(map(stem, files))
    in_splits = {name for split in SPLITS for name in by_split.get(split, ())}
    others = _with_suffix(files[0].parent, (*SUFFIXES, *TABLES[:4]))  # a .json file is often no data
    return sorted(file.name for file in others if file not in files or stem(file) not in in_splits)


@lru_cache(maxsize=256)  # once per folder
def _warn_unread(folder: Path, names: tuple[str, ...]) -> None:
    if names:
        logger.warning("%s: not read: %s", folder, _listed(names))


def _listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _read_hub(path: str, name: str | None, split: str, revision: str | None) -> Iterator[Record]:
    if not _is_hub_id(path):
        raise FileNotFoundError(f"no file or folder {path!r}{fetch_hint(path)}")
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


def _is_hub_id(path: str) -> bool:
    return bool(HUB_ID.fullmatch(path)) and not path.endswith((*SUFFIXES, *TABLES)) and not fetch_hint(path)


def is_saved(folder: Place) -> bool:
    """Return whether `save_to_disk` wrote a folder: a `Dataset`, or a `DatasetDict` with a folder per split."""
    return (folder / "dataset_dict.json").is_file() or _is_saved_split(folder)


def saved_files(folder: AnyPlace) -> dict[str, list[AnyPlace]]:
    """Return the files of each split of a saved data set, in order; a `Dataset` without a split is `train`.

    Raises:
        BrokenFile: the list of splits or files is damaged.
        FileNotFoundError: a split or a file is not there.
    """
    if _is_saved_split(folder):
        return dict([_saved_split(folder)])
    index = folder / "dataset_dict.json"
    names = read_json(index, keys=("splits",), repair=REPAIR)["splits"]
    with content_of(index, repair=REPAIR):
        parts = {str(name): folder / name for name in names}
    missing = next((part for part in parts.values() if not _is_saved_split(part)), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing} is no saved data set, and {index} lists it; {REPAIR}")
    return {name: _saved_split(part)[1] for name, part in parts.items()}


def _is_saved_split(folder: Place) -> bool:
    return all((folder / name).is_file() for name in ("state.json", "dataset_info.json"))


def _saved_split(folder: AnyPlace) -> tuple[str, list[AnyPlace]]:
    """Return the split and the files of a saved `Dataset`."""
    index = folder / "state.json"
    state = read_json(index, keys=("_data_files",), repair=REPAIR)
    with content_of(index, repair=REPAIR):
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        split = re.match(r"\w+", state.get("_split") or "")
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing} is missing, and {index} lists it; {REPAIR}")
    return split.group() if split else "train", files


def data_identity(
    path: str, *, split: str | None, revision: str | None = None, sha256: Callable[[Path], str]
) -> dict[str, str | None]:
    """Return what identifies a data set: `name`, and `sha256` of its files, or `hub` and `revision`.

    For missing files, only `name` is returned. A data set of the Hub is compared by its id and by the revision that the
    recipe names; without a revision, by the id only.

    Args:
        path: path in a recipe.
        split: split of a folder; None: all of its files.
        revision: revision on the Hub.
        sha256: returns the sha256 of a file.
    """
    identity: dict[str, str | None] = {"name": base_name(path)}
    try:
        text = expand(path)
        local = Path(text)
        if local.exists():
            return {**identity, "sha256": files_digest(local, files_of(local, split), sha256)}
    except (ValueError, FileNotFoundError):  # a path stored by name, a variable that is not set, or no such split
        return identity
    return {**identity, "hub": text, "revision": revision} if _is_hub_id(text) else identity


def files_of(path: Path, split: str | None) -> list[Path]:
    """Return the files of a folder's split (None: of all splits), or the file itself.

    Raises:
        FileNotFoundError: there is no such split.
    """
    if path.is_file():
        return [path]
    if is_beir(path):
        parts = [find_file(path, name) for name in ("corpus", "queries")]
        qrels = [file for name, file in qrels_files(path).items() if split in (None, name)]
        return [*(file for file in parts if file is not None), *qrels]
    if split is not None:
        return split_files(path, split)
    files = {file for file in path.rglob("*") if file.name.endswith((*SUFFIXES, ".csv", ".tsv", ".tsv.gz"))}
    with suppress(FileNotFoundError):  # data files in subfolders only
        files.update(data_files(path))
    return [file for file in sorted(files) if file.is_file() and not file.name.startswith(".")]


def files_digest(path: Path, files: list[Path], sha256: Callable[[Path], str]) -> str:
    """Return the sha256 of the names, below `path`, and contents of some files."""
    names = [file.relative_to(path).as_posix() if path.is_dir() else "" for file in files]
    return digest_of([[name, sha256(file)] for name, file in zip(names, files, strict=True)])
