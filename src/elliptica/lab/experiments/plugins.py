"""Methods, data sets and networks of one's own: how a module registers them, and how runs find the module.

A plugin is an ordinary module. It is imported in every process that does runs. Records of runs that use
something of it hold its name and a hash of its source.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from elliptica._utils.text import count
from elliptica.lab.data.splits import Dataset
from elliptica.lab.experiments.methods import METHODS, ROWS_PER_SAMPLE
from elliptica.lab.experiments.methods.modules import from_module
from elliptica.lab.experiments.registry import DATASETS, MODELS, RESPLIT, RegistryError
from elliptica.lab.experiments.specification import Run

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: How entries of records begin that name a plugin; their value is the hash of its source.
ENTRY = "plugin "


class PluginError(RuntimeError):
    """A plugin cannot be used; the message names it and says what to do."""


@dataclass(frozen=True)
class Plugin:
    """A module that was imported, and how another process imports the same."""

    name: str  # of the module
    folder: str  # where it can be imported from
    digest: str  # hash of its source


#: Module that registered a name, by kind of thing and name.
_ORIGINS: dict[tuple[str, str], str] = {}
#: Hash of the source of these modules, and of plugins, by top-level name, as it was when they were imported.
_DIGESTS: dict[str, str] = {}
#: Plugins of this process.
_LOADED: dict[str, Plugin] = {}


def register_method(name: str, *, rows_per_sample: int = 1) -> Callable[[Decorated], Decorated]:
    """Register a method of training under a name for tables.

    Decorate a module class such as those of `elliptica.baselines`: made by ``Class(model, loss_fn,
    **settings)`` and called with inputs, targets and ``generator=``, it returns the loss. If it is made with
    ``num_classes``, it gets the number of classes (None for real targets); if ``forward`` takes ``group``, it
    gets the environment of each row. Or decorate a function of settings and a `Context` that returns a
    `Prepared`, for methods that need the whole training set or several stages.

    Args:
        name: In tables; it must be new.
        rows_per_sample: Rows that go through the network for each sample of a step, for the record.

    Raises:
        PluginError: If the name exists.
    """
    origin = _caller()

    def register(method: Decorated) -> Decorated:
        _note("method", name, METHODS, origin)
        METHODS[name] = from_module(method) if isinstance(method, type) else method
        ROWS_PER_SAMPLE[name] = rows_per_sample
        return method

    return register


def register_dataset(name: str, *, resplit: float | None = None) -> Callable[[Decorated], Decorated]:
    """Register a data set under a name for tables.

    Decorate a function that returns a `elliptica.lab.data.Dataset`. It gets ``seed``, the number of the
    repetition, and ``data_dir`` if it has parameters of these names, and what a table says in ``load``.

    Args:
        name: In tables; it must be new.
        resplit: If the seed also decides which rows are tested: the number of test rows over that of all
            others. Such data are not tuned, and intervals of reports allow for it. None: the test rows are
            the same for every seed.

    Raises:
        PluginError: If the name exists.
    """
    origin = _caller()

    def register(load: Decorated) -> Decorated:
        _note("data set", name, DATASETS, origin)
        takes = inspect.signature(load).parameters

        def load_own(*, seed: int, data_dir: Any, **options: Any) -> Dataset:
            given = {key: value for key, value in (("seed", seed), ("data_dir", data_dir)) if key in takes}
            try:
                found = load(**given, **options)
            except (OSError, ValueError, TypeError):  # messages for the user
                raise
            except Exception as error:  # the user's code
                raise RegistryError(
                    f"{origin}, data set {name!r}: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(found, Dataset):
                raise RegistryError(
                    f"{origin}, data set {name!r}: the function must return an elliptica.lab.data.Dataset, "
                    f"but returned {type(found).__name__}."
                )
            return found

        DATASETS[name] = load_own
        if resplit is not None:
            RESPLIT[name] = resplit
        return load

    return register


def register_model(name: str) -> Callable[[Decorated], Decorated]:
    """Register a network under a name for tables.

    Decorate a function that returns it, not trained: it gets the `elliptica.lab.data.Dataset`, the number of
    outputs, and what a table says in ``model`` by name.

    Args:
        name: In tables; it must be new.

    Raises:
        PluginError: If the name exists.
    """
    origin = _caller()

    def register(make: Decorated) -> Decorated:
        _note("network", name, MODELS, origin)

        def make_own(data: Dataset, n_outputs: int, options: dict[str, Any]) -> nn.Module:
            found: nn.Module = make(data, n_outputs, **options)
            return found

        MODELS[name] = make_own
        return make

    return register


def _caller() -> str:
    """Name of the module that registers something."""
    return str(sys._getframe(2).f_globals.get("__name__", "?"))


def _note(kind: str, name: str, known: dict[str, Any], origin: str) -> None:
    if name in known:
        owner = _ORIGINS.get((kind, name), "elliptica")
        raise PluginError(
            f"{origin} registers the {kind} {name!r}, which is there already ({owner}). Choose another name."
        )
    _ORIGINS[kind, name] = origin
    _remember(origin)


def _remember(module: str) -> str:
    """Hash of the source of a module's file or, in a package, of all files of the package."""
    top = module.partition(".")[0]
    if top not in _DIGESTS:
        found, files = sys.modules.get(top), list[Path]()
        for folder in getattr(found, "__path__", []):
            files += sorted(Path(folder).rglob("*.py"))
        if not files and getattr(found, "__file__", None):
            files = [Path(str(getattr(found, "__file__", None)))]
        content = hashlib.blake2b(digest_size=6)
        for file in files:
            content.update(file.name.encode() + file.read_bytes())
        _DIGESTS[top] = content.hexdigest() if files else "unknown"  # e.g. typed into an interpreter
    return _DIGESTS[top]


def load_plugins(names: Sequence[str]) -> tuple[Plugin, ...]:
    """Import modules by name, from the current folder or wherever Python finds them, or by their file.

    Raises:
        PluginError: If one cannot be imported, or registers nothing.
    """
    found = []
    for name in dict.fromkeys(names):
        if name.endswith(".py") or "/" in name:
            file = Path(name).expanduser().absolute()
            if not file.is_file():
                raise PluginError(f"Plugin {name}: there is no such file.")
            found.append(_load(file.stem, str(file.parent), file))
        else:
            found.append(_load(name, str(Path.cwd())))
    return tuple(found)


def ensure_plugins(plugins: Sequence[Plugin]) -> None:
    """Import plugins in another process than the one that loaded them first.

    Raises:
        PluginError: If one cannot be imported here, or its source is another one.
    """
    for plugin in plugins:
        here = _load(plugin.name, plugin.folder)
        if here.digest != plugin.digest:
            raise PluginError(
                f"Plugin {plugin.name}: its source here ({here.digest}) is not that with which the command "
                f"was started ({plugin.digest}). Start the command again, with the same source everywhere."
            )


def _load(name: str, folder: str, file: Path | None = None) -> Plugin:
    before = len(_ORIGINS)
    if name not in _LOADED:
        _import(name, folder)
    loaded = getattr(sys.modules[name], "__file__", None)
    if file is not None and (loaded is None or not Path(loaded).samefile(file)):
        raise PluginError(
            f"Plugin {file}: there is another module of this name already ({loaded}). Rename yours."
        )
    own = [origin for origin in _ORIGINS.values() if f"{origin}.".startswith(f"{name}.")]
    if name not in _LOADED and len(_ORIGINS) == before and not own:
        raise PluginError(
            f"Plugin {name} ({loaded}) registers nothing. Decorate your code with register_method, "
            "register_dataset or register_model of elliptica.lab.experiments."
        )
    return _LOADED.setdefault(name, Plugin(name, folder, _remember(name)))


def _import(name: str, folder: str) -> None:
    sys.path.insert(0, folder)
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the user's code
        if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
            raise PluginError(
                f"Plugin {name}: there is no module of this name in {folder}, and none is installed. Start "
                "the command in its folder, or give the path of the file, such as code/mine.py."
            ) from error
        raise PluginError(f"Plugin {name} cannot be imported: {_told(error, name)}") from error
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:  # last from now on: its other files are found, and hide no package
            sys.path.append(folder)


def _told(error: BaseException, name: str) -> str:
    """The error, and the last line of the plugin's own code that led to it."""
    told = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
    lines, trace = [], error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == name.partition(".")[0]:
            lines.append(f"{Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}")
        trace = trace.tb_next
    return f"{told} ({lines[-1]})" if lines else told


def plugin_versions(run: Run) -> dict[str, str]:
    """What a run takes from plugins: entries for its record, with the hash of each source."""
    used = (("method", run.method), ("data set", run.load["name"]), ("network", run.model["name"]))
    return {f"{ENTRY}{_ORIGINS[each]}": _remember(_ORIGINS[each]) for each in used if each in _ORIGINS}


def is_own_dataset(name: str) -> bool:
    """Whether a plugin registered a data set."""
    return ("data set", name) in _ORIGINS


def plugin_options(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Words of a command that name the plugins of records."""
    names = {entry for record in records for entry in record["versions"] if entry.startswith(ENTRY)}
    return [word for entry in sorted(names) for word in ("--plugin", entry.removeprefix(ENTRY))]


def version_remarks(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of records if sources of plugins were others than now, or differ among the records."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        for entry, digest in record["versions"].items():
            if entry.startswith(ENTRY):
                counts = found.setdefault(entry.removeprefix(ENTRY), {})
                counts[str(digest)] = counts.get(str(digest), 0) + 1
    told = []
    for name, counts in found.items():
        now = _DIGESTS.get(name.partition(".")[0])
        old = sum(number for digest, number in counts.items() if digest != now)
        if now is not None and old:
            before = ", ".join(sorted(set(counts) - {now}))
            told.append(
                f"{count(old, 'record')} here {'was' if old == 1 else 'were'} made with another source of "
                f"{name} ({before}; now it is {now}). To repeat them, move them away and run again."
            )
        elif len(counts) > 1:
            told.append(
                f"The records were made with different sources of {name}: {', '.join(sorted(counts))}."
            )
    return told
