"""The table behind `elliptica.data.catalogue`: names, licences, sources and files of data sets."""

from __future__ import annotations

from dataclasses import dataclass

from elliptica.data import domains, features, tabular
from elliptica.data.medmnist import MEDMNIST


@dataclass(frozen=True)
class DataFile:
    """A file of a data set.

    Attributes:
        path: Path inside a data directory (or absolute, for files of a system package).
        checksum: Kind and digits of the published hash.
        n_bytes: Published size.
        urls: Addresses it can be downloaded from, first choice first.
        is_packed: The hash is that of the content of a gzip file, since packers differ.
    """

    path: str
    checksum: str | None = None
    n_bytes: int | None = None
    urls: tuple[str, ...] = ()
    is_packed: bool = False


@dataclass(frozen=True)
class Entry:
    """What is known about a data set.

    Attributes:
        name: Short name.
        title: What it is, in a line.
        task: ``"regression"`` or ``"classification"``.
        rows: Rows for training, validation and test, or in all.
        licence: Terms of use, as commonly cited.
        source: Who published it, with a DOI or an address.
        loader: The call that loads it.
        forms: Sets of files, each of which is enough; the first is what `fetch` downloads.
        hint: How else to get it.
    """

    name: str
    title: str
    task: str
    rows: str
    licence: str
    source: str
    loader: str
    forms: tuple[tuple[DataFile, ...], ...] = ()
    hint: str = ""

    @property
    def can_fetch(self) -> bool:
        """Whether `elliptica data fetch` gets it."""
        return bool(self.forms) and all(file.urls for file in self.forms[0])


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_ZENODO = "https://zenodo.org/records/10519652/files"
_BY = "CC BY 4.0"
BY_HAND = "Put the file there by hand."


def sha(digits: str) -> str:
    """A SHA-256 hash as the table writes it."""
    return f"sha256:{digits}"


_TABLES = (
    Entry(
        "airfoil",
        "noise of aerofoils in a wind tunnel, 5 inputs",
        "regression",
        "1003 / 300 / 200",
        _BY,
        tabular._AIRFOIL.source,
        "load_airfoil(seed)",
        (
            (
                DataFile(
                    tabular._AIRFOIL.relative_path,
                    sha(tabular._AIRFOIL.sha256),
                    59984,
                    (f"{_UCI}/00291/airfoil_self_noise.dat",),
                ),
            ),
        ),
    ),
    Entry(
        "no2",
        "nitrogen dioxide beside a road, 7 inputs",
        "regression",
        "200 / 200 / 100",
        "none stated",
        tabular._NO2.source,
        "load_no2(seed)",
        ((DataFile(tabular._NO2.relative_path, sha(tabular._NO2.sha256), 19946),),),
        "Take NO2.dat from StatLib (lib.stat.cmu.edu/datasets) and put commas between the values, with CRLF "
        "line ends.",
    ),
    Entry(
        "skillcraft",
        "reaction times of players of a game, 17 inputs, leagues as domains",
        "regression",
        "1878 / 806 / 711",
        _BY,
        domains._SKILLCRAFT.source,
        "load_skillcraft(seed)",
        (
            (
                DataFile(
                    domains._SKILLCRAFT.relative_path,
                    sha(domains._SKILLCRAFT.sha256),
                    500258,
                    (f"{_UCI}/00272/SkillCraft1_Dataset.csv",),
                ),
            ),
        ),
    ),
    Entry(
        "crime",
        "violent crimes in communities, 122 inputs, states as domains",
        "regression",
        "1390 / 231 / 373",
        _BY,
        domains._CRIME.source,
        "load_crime(seed)",
        (
            (
                DataFile(
                    domains._CRIME.relative_path,
                    sha(domains._CRIME.sha256),
                    1102815,
                    (f"{_UCI}/communities/communities.data",),
                ),
            ),
        ),
    ),
    Entry(
        "waterbirds-features",
        "birds on land and water as 1280 features of a frozen network",
        "classification",
        "4795 / 1199 / 5794",
        "non-commercial research",
        features._WATERBIRDS.source,
        "load_waterbirds_features(seed)",
        ((DataFile(features._WATERBIRDS.relative_path, sha(features._WATERBIRDS.sha256), 21356138),),),
        "The features are made from the photographs of Waterbirds v1.0 by EfficientNet-Lite0. " + BY_HAND,
    ),
)

_MED_TITLES = {
    "breastmnist": "breast ultrasound, malignant or not",
    "bloodmnist": "blood cells, 8 kinds",
    "pathmnist": "tissue of the colon, 9 kinds",
    "pathmnist_subset": "a tenth of PathMNIST's training and validation images, all test images",
    "organamnist": "organs in CT scans, axial, 11 kinds",
    "organcmnist": "organs in CT scans, coronal, 11 kinds",
    "organsmnist": "organs in CT scans, sagittal, 11 kinds",
    "retinamnist": "retina, 5 grades of disease",
    "dermamnist": "skin lesions, 7 kinds",
    "pneumoniamnist": "chest X-rays, pneumonia or not",
    "tissuemnist": "kidney cells, 8 kinds",
    "octmnist": "retina by optical coherence tomography, 4 kinds",
}
_MED_BYTES = {
    "breastmnist": 559580,
    "retinamnist": 3291041,
    "pathmnist": 205615438,
    "pathmnist_subset": 32752465,
}


def _medmnist(name: str) -> Entry:
    known = MEDMNIST[name]
    is_published = not name.endswith("_subset")
    urls = (f"{_ZENODO}/{name}.npz?download=1",) if is_published else ()
    return Entry(
        name,
        f"{_MED_TITLES[name]}; 28x28, {'grey' if known.n_channels == 1 else 'colour'}",
        "classification",
        " / ".join(map(str, known.sizes)),
        "CC BY-NC 4.0" if name == "dermamnist" else _BY,
        known.source,
        f'load_medmnist("{name}", seed)',
        ((DataFile(known.relative_path, known.checksum, _MED_BYTES.get(name), urls),),),
        f"Or by the package medmnist, which puts {name}.npz into ~/.medmnist; copy it from there."
        if is_published
        else f"Fetch pathmnist instead (206 MB) and load that. {BY_HAND}",
    )


#: Tables and medical images.
TABLES_AND_MEDICAL = (*_TABLES, *map(_medmnist, MEDMNIST))
