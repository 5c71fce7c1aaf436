"""Photographs with groups: crops, files read on demand, and the three data sets on tiny ones of our own."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from elliptica import EllipticWarning
from elliptica.lab.data import (
    load_camelyon17,
    load_celeba,
    load_waterbirds,
    load_waterbirds_features,
)
from elliptica.lab.data.groups import IMAGENET, ImageFiles, Pipeline, draw_box
from group_fixtures import make_camelyon17, make_celeba, make_waterbirds, photograph
from laws import ALPHA, assert_distribution
from published import npz, publish

PARTS = ("train", "validation", "test")
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
MAKERS = {
    "waterbirds": (make_waterbirds, load_waterbirds),
    "celeba": (make_celeba, load_celeba),
    "camelyon17": (make_camelyon17, load_camelyon17),
}


def normalised(image):
    """By the published means and deviations of ImageNet."""
    return (np.asarray(image, dtype=np.float64) / 255 - MEAN) / DEVIATION


def bilinear(image, size):
    return image.resize((size, size), Image.Resampling.BILINEAR)


# crops


def boxes(generator, n, width, height, **settings):
    return np.array([draw_box(width, height, generator=generator, **settings) for _ in range(n)], dtype=float)


@pytest.mark.statistical
def test_crop_area_ratio_and_place_have_their_laws(generator, rng):
    """Area, log ratio and place are uniform. A ratio that is uniform, not its logarithm, is rejected.

    With ratios near 1 and areas up to 0.5 every draw fits, so that the laws are exact up to rounding; the
    images are so large that rounding does not show.
    """
    left, top, w, h = boxes(generator, 4000, 10**6, 10**6, scale=(0.2, 0.5), ratio=(0.6, 1.5)).T
    log_ratio = np.log(w / h)
    tilt = stats.uniform(np.log(0.6), np.log(1.5 / 0.6)).cdf
    assert_distribution(w * h / 1e12, stats.uniform(0.2, 0.3).cdf)
    assert_distribution(log_ratio, tilt)
    assert_distribution(left / (1e6 - w), stats.uniform.cdf)
    assert_distribution(top / (1e6 - h), stats.uniform.cdf)
    for a, b in ((w * h, log_ratio), (left / (1e6 - w), top / (1e6 - h))):
        assert stats.spearmanr(a, b).pvalue > ALPHA
    with pytest.raises(AssertionError, match="Kolmogorov-Smirnov"):
        assert_distribution(np.log(rng.uniform(0.6, 1.5, size=4000)), tilt)


@pytest.mark.statistical
def test_crop_is_conditional_on_fitting(generator, rng):
    """CelebA's case: a tall image and wide crops. Against rejection by hand of draws that do not fit."""
    width, height, scale, ratio = 178, 218, (0.2, 1.0), (1.0, 4 / 3)
    drawn = boxes(generator, 4000, width, height, scale=scale, ratio=ratio)
    area = width * height * rng.uniform(*scale, size=20000)
    tilt = np.exp(rng.uniform(np.log(ratio[0]), np.log(ratio[1]), size=20000))
    w, h = np.rint(np.sqrt(area * tilt)), np.rint(np.sqrt(area / tilt))
    fits = (w <= width) & (h <= height)
    assert 0.3 < fits.mean() < 0.9  # so ten failures in a row are rare, and rejection matters
    assert stats.ks_2samp(drawn[:, 2], w[fits], method="asymp").pvalue > ALPHA
    assert stats.ks_2samp(drawn[:, 3], h[fits], method="asymp").pvalue > ALPHA
    assert stats.ks_2samp(drawn[:, 2], np.minimum(w, width), method="asymp").pvalue < ALPHA  # clipped
    assert (drawn[:, 0] + drawn[:, 2] <= width).all()
    assert (drawn[:, 1] + drawn[:, 3] <= height).all()


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio", "expected"),
    [
        (60, 40, (1.0, 1.0), (1.5, 1.5), (0, 0, 60, 40)),  # the whole image
        (100, 10, (1.0, 1.0), (0.5, 2.0), (40, 0, 20, 10)),  # too wide: the largest ratio, in the middle
        (10, 100, (1.0, 1.0), (0.5, 2.0), (0, 40, 10, 20)),  # too tall: the least
        (1, 1, (0.01, 0.01), (1.0, 1.0), (0, 0, 1, 1)),  # rounds to nothing: the whole image
    ],
)
def test_crops_with_known_answers(width, height, scale, ratio, expected, generator):
    for _ in range(20):
        assert draw_box(width, height, scale=scale, ratio=ratio, generator=generator) == expected


def test_training_crop_is_crop_resize_and_flip(tmp_path):
    image = Image.open(photograph(tmp_path / "a.png", 3, width=60, height=40))
    pipeline = Pipeline(8, centre=8, augment="crop", scale=(0.3, 0.6))
    flipped = 0
    for seed in range(20):
        x = pipeline(image, torch.Generator().manual_seed(seed)).permute(1, 2, 0).numpy()
        stream = torch.Generator().manual_seed(seed)
        box = draw_box(60, 40, scale=(0.3, 0.6), ratio=(3 / 4, 4 / 3), generator=stream)
        part = np.asarray(image)[box.top : box.top + box.height, box.left : box.left + box.width]
        expected = normalised(bilinear(Image.fromarray(part.copy()), 8))
        mirrored = float(torch.rand((), dtype=torch.float64, generator=stream)) < 0.5
        np.testing.assert_allclose(x, expected[:, ::-1] if mirrored else expected, atol=1e-5)
        flipped += mirrored
    assert 2 < flipped < 18


# image files


@pytest.fixture
def files(tmp_path):
    paths = [str(photograph(tmp_path / f"{i}.png", 2 * i)) for i in range(9)]
    return ImageFiles(paths, Pipeline(6, centre=20, augment="crop"))


def numbers(x):
    """Which pictures these are, by their constant red channel."""
    return ((x[:, 0] * IMAGENET.deviation[0] + IMAGENET.mean[0]).mean((1, 2)) / 10).round().int().tolist()


def test_image_files_stand_in_for_a_tensor(files):
    assert (files.shape, len(files), files.dtype) == (torch.Size([9, 3, 6, 6]), 9, torch.float32)
    full = torch.stack([files.pipeline(Image.open(path)) for path in files.paths])
    for index in (
        torch.tensor([3, 0, 3]),
        torch.tensor([[1, 2], [8, 0]]),
        torch.arange(9) % 2 == 0,
        slice(2, 5),
        slice(4, 4),
        [5, -1],
        4,
        torch.empty(0, dtype=torch.int64),
    ):
        assert torch.equal(files[index], full[index])
    assert numbers(files[torch.tensor([3, 0, 3])]) == [3, 0, 3]
    assert [len(part) for part in files.split(4)] == [4, 4, 1]
    assert torch.equal(torch.cat(list(files.split(4))), full)
    assert torch.equal(pickle.loads(pickle.dumps(files))[:2], full[:2])
    with pytest.raises(IndexError):
        files[9]


def test_training_images_are_those_of_the_generator(files, monkeypatch):
    def stream(seed):
        return torch.Generator().manual_seed(seed)

    rows = torch.tensor([2, 2, 7, 5])
    first = files.training(stream(0))[rows]
    with monkeypatch.context() as patch:
        patch.setattr("elliptica.lab.data.groups._THREADS", 1)
        assert torch.equal(files.training(stream(0))[rows], first)
    assert not torch.equal(files.training(stream(1))[rows], first)
    assert not torch.equal(first[0], first[1])  # the same photograph twice, drawn twice
    assert numbers(first) == [2, 2, 7, 5]
    same = stream(0)
    view = files.training(same)
    assert torch.equal(view[rows[:2]], first[:2])  # images in batches come from one stream
    assert not torch.equal(view[rows[:2]], first[:2])
    plain = ImageFiles(files.paths, Pipeline(6, centre=20))
    state = same.get_state()
    assert torch.equal(plain.training(same)[rows], files[rows])  # without augmentation nothing is drawn
    assert torch.equal(same.get_state(), state)


# the three data sets


def rows_of(split, root):
    """Name, class and group of each row."""
    names = [os.path.relpath(path, root).replace(os.sep, "/") for path in split.x.paths]
    return sorted(zip(names, split.y.tolist(), split.group.tolist(), strict=True))


def first_image(split):
    return Image.open(split.x.paths[0]).convert("RGB"), split.x[0].permute(1, 2, 0).numpy()


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_waterbirds(tmp_path):
    root, rows = make_waterbirds(tmp_path)
    data = load_waterbirds(data_dir=tmp_path)
    assert (data.name, data.task, data.train.x.shape) == ("waterbirds", "classification", (12, 3, 224, 224))
    for number, part in enumerate(PARTS):
        expected = sorted((name, y, 2 * y + place) for name, y, split, place in rows if split == number)
        assert rows_of(getattr(data, part), root) == expected
    image, x = first_image(data.test)
    np.testing.assert_allclose(x, normalised(bilinear(image, 256))[16:240, 16:240], atol=1e-5)


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
@pytest.mark.parametrize(
    ("form", "images"),
    [
        ("txt", "img_align_celeba"),
        ("csv", "img_align_celeba/img_align_celeba"),
        ("published", "Img/img_align_celeba"),
    ],
)
def test_celeba(tmp_path, form, images):
    root, rows = make_celeba(tmp_path, form, images)
    data = load_celeba(data_dir=tmp_path)
    for number, part in enumerate(PARTS):
        expected = sorted((name, y, 2 * y + male) for name, y, male, split in rows if split == number)
        assert rows_of(getattr(data, part), root / images) == expected
    image, x = first_image(data.test)
    square = Image.fromarray(np.asarray(image)[20:198].copy())
    np.testing.assert_allclose(x, normalised(bilinear(square, 224)), atol=1e-5)


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_camelyon17(tmp_path):
    root, rows = make_camelyon17(tmp_path)
    data = load_camelyon17(data_dir=tmp_path)

    def chosen(keep):
        return sorted((name, y, centre) for name, y, centre, split in rows if keep(centre, split))

    assert rows_of(data.train, root) == chosen(lambda centre, split: centre in (0, 3, 4) and split == 0)
    assert rows_of(data.validation, root) == chosen(lambda centre, split: centre == 1)
    assert rows_of(data.test, root) == chosen(lambda centre, split: centre == 2)
    image, x = first_image(data.test)
    np.testing.assert_allclose(x, normalised(image), atol=1e-5)
    for augment, is_flipped in (("none", False), ("flip", True)):
        files = load_camelyon17(data_dir=tmp_path, augment=augment).train.x
        drawn, plain = files.training(torch.Generator().manual_seed(0))[:], files[:]
        same = (drawn == plain).flatten(1).all(1)
        mirrored = (drawn == plain.flip(-1)).flatten(1).all(1)
        assert (same | mirrored).all()
        assert bool(mirrored.any()) == is_flipped


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
@pytest.mark.parametrize("name", MAKERS)
def test_seeds_order_the_rows_and_labels_belong_to_images(tmp_path, name):
    make, load = MAKERS[name]
    root, rows = make(tmp_path)
    first, again, other = (load(seed, data_dir=tmp_path, size=16) for seed in (0, 0, 1))
    assert first.train.x.paths == again.train.x.paths != other.train.x.paths
    number = {Path(row[0]).name: i for i, row in enumerate(rows)}
    shift = 0 if name == "camelyon17" else 1  # pictures of the other two count from one
    for part in PARTS:
        split = getattr(first, part)
        assert rows_of(split, root) == rows_of(getattr(other, part), root)
        red = split.x[:][:, 0] * IMAGENET.deviation[0] + IMAGENET.mean[0]
        for path, y, image in zip(split.x.paths, split.y, red, strict=True):
            i = number[Path(path).name]
            assert abs(float(image.mean()) - 5 * (i + shift)) < 2  # JPEG moves colours a little
            assert rows[i][1] == y


@pytest.mark.parametrize("name", ["waterbirds", "celeba"])
def test_other_counts_than_the_published_ones_are_told(tmp_path, monkeypatch, name):
    make, load = MAKERS[name]
    make(tmp_path)
    with pytest.warns(EllipticWarning, match="published") as caught:
        data = load(data_dir=tmp_path)
    assert caught[0].filename == __file__
    groups = data.train.group.bincount().tolist()
    publish(monkeypatch, tmp_path, name, {}, rows=tuple(getattr(data, part).n_rows for part in PARTS))
    with pytest.warns(EllipticWarning, match="published"):  # the groups differ still
        load(data_dir=tmp_path)
    monkeypatch.setitem(load.__globals__["_TRAINING_GROUPS"], name, groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(data_dir=tmp_path)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", MAKERS)
def test_bad_input(tmp_path, name):
    make, load = MAKERS[name]
    with pytest.raises(FileNotFoundError, match=name):
        load(data_dir=tmp_path)
    root, rows = make(tmp_path)
    with pytest.raises(ValueError, match="augment"):
        load(data_dir=tmp_path, augment="rotate")
    next(root.rglob(Path(rows[3][0]).name)).unlink()
    with pytest.raises(FileNotFoundError, match=Path(rows[3][0]).name):
        load(data_dir=tmp_path)


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
def test_a_pass_over_lazy_images_in_the_loop(tmp_path):
    """`batches` and `predictions` take image files where they take tensors."""
    from elliptica.lab.experiments.metrics import predictions
    from elliptica.lab.training.batch import batches

    make_waterbirds(tmp_path)
    data = load_waterbirds(data_dir=tmp_path, size=8)
    order, noise = (torch.Generator().manual_seed(i) for i in range(2))
    cpu = torch.device("cpu")
    seen = list(batches(data.train, 5, order=order, noise=noise, drop_last=False, device=cpu))
    assert [len(batch.x) for batch in seen] == [5, 5, 2]
    for batch in seen:
        assert torch.equal(batch.y, data.train.y[batch.index])
        assert torch.equal(batch.group, data.train.group[batch.index])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    torch.testing.assert_close(predictions(model, data.test, cpu), model(data.test.x[:]).detach())
    assert data.n_features == 192


# features


@pytest.fixture
def features(tmp_path, monkeypatch, rng):
    """A hundred rows of five features in the published layout; the last feature is constant in training."""
    part = rng.permutation(np.repeat([0, 1, 2], [50, 20, 30]))
    x = rng.normal(3, 2, size=(100, 5)).astype(np.float16)
    x[part == 0, 4] = 1
    y, place = (rng.integers(2, size=100).astype(np.int8) for _ in range(2))
    arrays = {"features": x, "y": y, "place": place, "split": part.astype(np.int8)}
    contents = {"waterbirds/waterbirds_effnetlite0.npz": npz(arrays)}
    publish(monkeypatch, tmp_path, "waterbirds-features", contents)
    return tmp_path, arrays


def test_waterbirds_features(features):
    folder, arrays = features
    data, other = (load_waterbirds_features(seed, data_dir=folder) for seed in (3, 4))
    assert (data.name, data.task, data.n_features) == ("waterbirds", "classification", 5)
    assert not torch.equal(data.train.x, other.train.x)
    x = arrays["features"].astype(np.float64)
    seen = x[arrays["split"] == 0]
    x = (x - seen.mean(0)) / np.where(seen.std(0) == 0, 1, seen.std(0))
    x[:, 4] = 0
    table = np.column_stack([x, arrays["y"], 2 * arrays["y"] + arrays["place"]])
    for i, part in enumerate(PARTS):
        split, wanted = getattr(data, part), table[arrays["split"] == i]
        columns = torch.cat([split.x, split.y[:, None], split.group[:, None]], 1).double().numpy()
        first, second = (rows[np.lexsort(rows.round(3).T)] for rows in (columns, wanted))
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.needs_data
def test_real_features(data_dir):
    data = load_waterbirds_features(data_dir=data_dir)
    counts = [getattr(data, part).group.bincount().tolist() for part in PARTS]
    assert counts == [[3498, 184, 56, 1057], [467, 466, 133, 133], [2255, 2255, 642, 642]]
    assert torch.equal(data.test.y, data.test.group // 2)
    torch.testing.assert_close(data.train.x.mean(0), torch.zeros(1280), atol=1e-5, rtol=0)
