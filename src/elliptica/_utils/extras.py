"""Parts of messages: optional packages that are missing, with the extra to install, and plurals."""

from __future__ import annotations

import importlib
from typing import Any

#: Packages that are installed under another name than they are imported.
_NAMES = {"faiss": "faiss-cpu", "imblearn": "imbalanced-learn", "PIL": "Pillow", "sklearn": "scikit-learn"}


def remedy(extra: str) -> str:
    """Return the command that installs an extra: in a clone, as long as no index has the package."""
    return f'pip install -e ".[{extra}]"'


def missing_package(user: str, extra: str, package: str | None) -> ModuleNotFoundError:
    """Return the error for a missing package that ``user`` needs and ``extra`` installs."""
    package = (package or "a package").partition(".")[0]
    text = f"{user} needs {_NAMES.get(package, package)}: {remedy(extra)}"
    return ModuleNotFoundError(text, name=package)


def import_extra(user: str, extra: str, *modules: str) -> Any:
    """Import modules that an extra installs, and return the last; raise `missing_package` without it."""
    for module in modules:
        package = module.partition(".")[0]
        try:
            importlib.import_module(package)  # first, so that its error does not name a submodule
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != package:  # what the package itself lacks is not brought by the extra
                raise
            raise missing_package(user, extra, package) from error
    return imported


def count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is one."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
