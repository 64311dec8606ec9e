"""Write the passport of a model by its name: of a saved encoder, or a ready Sentence-Transformers model."""

from __future__ import annotations

import shutil
from pathlib import Path

from embrew import check_passport
from embrew.files.writing import atomic_folder, check_free
from embrew.opening import open_model, passport_of
from embrew.passport.making import write_passport


def write_model_passport(
    name: str, folder: Path, *, pooling: str | None = None, int8: bool = False, overwrite: bool = False
) -> check_passport.Passport:
    """Write the passport of a model into a folder, with the checker beside it; return it as the checker reads it.

    Args:
        name: a trained folder, a Sentence-Transformers model, a recipe or a Hub id, as `open_model` takes it.
        folder: where to; must not exist, unless `overwrite`.
        pooling: of a language model without embedding settings, as `open_model` takes it.
        int8: servers may have weights in 8 bits.
        overwrite: replace a folder of a passport.

    Raises:
        FileNotFoundError: no such model.
        FileExistsError: the folder exists.
        ValueError: a model whose reading of texts is not known: an export, or one with modules of other kinds.
    """
    script = Path(check_passport.__file__)
    check_free(Path(folder), marker=script.name, overwrite=overwrite)  # models and indexes hold passports, too
    passport = passport_of(open_model(name, pooling=pooling), name, int8=int8)
    with atomic_folder(Path(folder), marker=script.name, overwrite=overwrite) as out:
        write_passport(passport, out)
        shutil.copyfile(script, out / script.name)
    return check_passport.Passport.read(folder)
