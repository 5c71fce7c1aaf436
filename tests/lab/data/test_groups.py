"""Waterbirds, CelebA and Camelyon17 on tiny data in the published layouts; image files and transforms."""

import copy
import dataclasses
import os
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from elliptica.core.inputs import EllipticWarning
from elliptica.lab.data import catalogue, groups, image_files, load_camelyon17, load_celeba, load_waterbirds
from elliptica.lab.data.image_files import ImageFiles
from elliptica.lab.data.images import PixelStatistics
from elliptica.lab.data.transforms import (
    IMAGENET,
    CentreCrop,
    ImageTransform,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    augmented,
    draw_box,
)
from group_fixtures import make_camelyon17, make_celeba, make_waterbirds, photograph
from laws import ALPHA, assert_distribution, assert_frequencies

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

pytestmark = pytest.mark.filterwarnings("ignore:.*were published:elliptica.EllipticWarning")


def picture(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pixels_of(image):
    return np.asarray(image).astype(np.float64)


# transforms


def test_normalisation_is_that_of_imagenet():
    image = picture(5, 4)
    x = ImageTransform((4, 5), ())(image)
    expected = (pixels_of(image).transpose(2, 0, 1) / 255 - MEAN[:, None, None]) / DEVIATION[:, None, None]
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-5)
    assert (x.dtype, x.is_contiguous()) == (torch.float32, True)
    own = ImageTransform((4, 5), (), PixelStatistics((0.0,), (255.0,)))(image)
    np.testing.assert_allclose(own.numpy(), pixels_of(image).transpose(2, 0, 1) / 255, atol=1e-6)
    np.testing.assert_allclose(np.array(IMAGENET.mean) / 255, MEAN, atol=1e-12)
    np.testing.assert_allclose(np.array(IMAGENET.deviation) / 255, DEVIATION, atol=1e-12)


def test_grey_images_get_three_channels():
    x = ImageTransform((4, 5), (), PixelStatistics((0.0,), (1.0,)))(picture(5, 4).convert("L"))
    assert x.shape == (3, 4, 5)
    assert torch.equal(x[0], x[2])


@pytest.mark.parametrize(
    ("width", "height", "size", "expected"),
    [
        # the shorter side becomes 8, the longer one is rounded down: 8 * 61 / 40 = 12.2, 8 * 59 / 40 = 11.8
        (60, 40, 8, (12, 8)),
        (61, 40, 8, (12, 8)),
        (59, 40, 8, (11, 8)),
        (40, 59, 8, (8, 11)),
        (40, 40, 80, (80, 80)),
        # height, width: whatever the image's own
        (60, 40, (8, 9), (9, 8)),
    ],
)
def test_resize_sizes(width, height, size, expected):
    assert Resize(size)(picture(width, height)).size == expected


def test_resize_leaves_an_image_of_that_size_alone_and_averages_otherwise():
    image = picture(6, 4)
    assert Resize((4, 6))(image) is image
    assert Resize(4)(image) is image
    flat = Image.new("RGB", (60, 40), (10, 200, 30))
    assert (pixels_of(Resize((7, 9))(flat)) == (10, 200, 30)).all()
    # Worked by hand: from four pixels to two, the triangle of half-width 2 around the first centre, 1.0,
    # gives pixels at 0.5, 1.5, 2.5 the weights 0.75, 0.75, 0.25: (0 * 3 + 100 * 3 + 200 * 1) / 7 = 71.4.
    row = Image.fromarray(np.array([[0, 100, 200, 40]], dtype=np.uint8)).convert("RGB")
    small = pixels_of(Resize((1, 2))(row))[0, :, 0]
    np.testing.assert_allclose(small, [500 / 7, (100 * 1 + 200 * 3 + 40 * 3) / 7], atol=1)


@pytest.mark.parametrize(
    ("width", "height", "size", "left", "top"),
    # half-way cases go to the even number, as Python rounds: 1.5 to 2, 0.5 to 0, 2.5 to 2
    [(8, 6, 4, 2, 1), (7, 6, 4, 2, 1), (5, 5, 4, 0, 0), (9, 4, 4, 2, 0), (4, 4, 4, 0, 0)],
)
def test_centre_crop(width, height, size, left, top):
    image = picture(width, height)
    crop = pixels_of(CentreCrop(size)(image))
    np.testing.assert_array_equal(crop, pixels_of(image)[top : top + size, left : left + size])


def test_centre_crop_of_a_small_image_is_black_around_it():
    image = picture(2, 6)
    crop = pixels_of(CentreCrop(5)(image))
    # three columns too few: one on the left, two on the right; one row too many: (6 - 5) / 2 = 0.5, so none
    np.testing.assert_array_equal(crop[:, 1:3], pixels_of(image)[:5])
    assert (crop[:, [0, 3, 4]] == 0).all()


@pytest.mark.statistical
def test_flip_mirrors_and_has_its_probability(generator):
    image = picture(5, 4)
    flipped = RandomFlip(1.0)(image, generator)
    np.testing.assert_array_equal(pixels_of(flipped), pixels_of(image)[:, ::-1])
    assert RandomFlip(0.0)(image, generator) is image
    counts = {}
    for p in (0.5, 0.3):
        n = sum(RandomFlip(p)(image, generator) is not image for _ in range(3000))
        assert_frequencies([n, 3000 - n], [p, 1 - p])
        counts[p] = n
    with pytest.raises(AssertionError, match="frequencies"):
        assert_frequencies([counts[0.3], 3000 - counts[0.3]], [0.5, 0.5])


def boxes(generator, n, width=1000, height=1000, **settings):
    return np.array([draw_box(width, height, generator=generator, **settings) for _ in range(n)], dtype=float)


@pytest.mark.statistical
def test_crop_area_ratio_and_place_have_their_laws(generator, rng):
    """Area, log ratio and place are uniform. A ratio that is uniform, not its logarithm, is rejected.

    With ratios near 1 and areas up to 0.5 every draw fits, so that the laws are exact up to rounding; the
    images are so large that rounding does not show.
    """
    scale, ratio = (0.2, 0.5), (0.6, 1.5)
    left, top, w, h = boxes(generator, 4000, 10**6, 10**6, scale=scale, ratio=ratio).T
    log_ratio = np.log(w / h)
    tilt = stats.uniform(np.log(0.6), np.log(1.5 / 0.6)).cdf
    assert_distribution(w * h / 1e12, stats.uniform(0.2, 0.3).cdf)
    assert_distribution(log_ratio, tilt)
    assert_distribution(left / (1e6 - w), stats.uniform.cdf)
    assert_distribution(top / (1e6 - h), stats.uniform.cdf)
    for a, b in ((w * h, log_ratio), (left / (1e6 - w), top / (1e6 - h))):
        assert stats.spearmanr(a, b).pvalue > ALPHA
    wrong = np.log(rng.uniform(0.6, 1.5, size=4000))
    with pytest.raises(AssertionError, match="Kolmogorov-Smirnov"):
        assert_distribution(wrong, tilt)


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
    with pytest.raises(AssertionError):
        # a crop clipped to the image instead of drawn again
        assert stats.ks_2samp(drawn[:, 2], np.minimum(w, width), method="asymp").pvalue > ALPHA
    assert (drawn[:, 0] + drawn[:, 2] <= width).all()
    assert (drawn[:, 1] + drawn[:, 3] <= height).all()
    assert drawn[:, :2].min() == 0


@pytest.mark.statistical
def test_crop_places_of_small_images_are_all_met(generator):
    drawn = boxes(generator, 4000, 5, 4, scale=(0.2, 0.2), ratio=(1.0, 1.0))  # 2 x 2 pixels
    assert (drawn[:, 2:] == 2).all()
    counts = np.zeros((4, 3))
    np.add.at(counts, (drawn[:, 0].astype(int), drawn[:, 1].astype(int)), 1)
    assert_frequencies(counts.ravel(), np.full(12, 1 / 12))
    counts[3] = 0  # a sampler that never comes to the last place
    with pytest.raises(AssertionError, match="frequencies"):
        assert_frequencies(counts.ravel(), np.full(12, 1 / 12))


@pytest.mark.parametrize(
    ("width", "height", "scale", "ratio", "expected"),
    [
        (60, 40, (1.0, 1.0), (1.5, 1.5), (0, 0, 60, 40)),  # the whole image
        (100, 10, (1.0, 1.0), (0.5, 2.0), (40, 0, 20, 10)),  # too wide: the largest ratio, in the middle
        (10, 100, (1.0, 1.0), (0.5, 2.0), (0, 40, 10, 20)),  # too tall: the least
        (101, 10, (1.0, 1.0), (0.5, 2.0), (40, 0, 20, 10)),
        (1, 1, (0.01, 0.01), (1.0, 1.0), (0, 0, 1, 1)),  # rounds to nothing: the whole image
        (1, 1, (0.7, 1.0), (3 / 4, 4 / 3), (0, 0, 1, 1)),
    ],
)
def test_crops_with_known_answers(width, height, scale, ratio, expected, generator):
    for _ in range(20):
        assert draw_box(width, height, scale=scale, ratio=ratio, generator=generator) == expected


def test_random_resized_crop_is_crop_then_resize(generator):
    image, step = picture(60, 40), RandomResizedCrop(8, scale=(0.3, 0.6))
    state = generator.get_state()
    x = step(image, generator)
    generator.set_state(state)
    box = draw_box(60, 40, scale=(0.3, 0.6), generator=generator)
    cut = Image.fromarray(
        np.asarray(image)[box.top : box.top + box.height, box.left : box.left + box.width].copy()
    )
    np.testing.assert_array_equal(np.asarray(x), np.asarray(cut.resize((8, 8), Image.Resampling.BILINEAR)))
    whole = RandomResizedCrop(40, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    np.testing.assert_array_equal(np.asarray(whole(picture(40, 40), generator)), np.asarray(picture(40, 40)))


def test_the_same_number_of_draws_for_every_image(generator):
    states = []
    for size in ((60, 40), (100, 1), (1, 1)):
        stream = torch.Generator().manual_seed(5)
        RandomResizedCrop(4)(picture(*size), stream)
        RandomFlip()(picture(*size), stream)
        states.append(torch.rand(1, generator=stream))
    assert states[0] == states[1] == states[2]


def test_pairs_of_transforms():
    evaluation = ImageTransform((8, 8), (Resize((8, 8)),), PixelStatistics((1.0,), (2.0,)))
    assert augmented(evaluation, "none") is None
    assert augmented(evaluation, "flip").steps == (Resize((8, 8)), RandomFlip(0.5))
    crop = augmented(evaluation, "crop", scale=(0.5, 0.9), ratio=(1.0, 2.0))
    assert crop.steps == (RandomResizedCrop(8, (0.5, 0.9), (1.0, 2.0)), RandomFlip(0.5))
    assert crop.statistics == evaluation.statistics


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RandomResizedCrop(8, scale=(0.0, 1.0)),
            r"scale must be two shares .* but got \(0\.0, 1\.0\)",
        ),
        (lambda: RandomResizedCrop(8, scale=(0.9, 0.5)), "scale must be"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 1.5)), "scale must be"),
        (lambda: RandomResizedCrop(8, scale=(float("nan"), 1.0)), "scale must be"),
        (lambda: RandomResizedCrop(8, ratio=(-1.0, 1.0)), "ratio must be"),
        (lambda: RandomResizedCrop(8, ratio=(1.0, float("inf"))), "ratio must be"),
        (lambda: RandomFlip(1.5), "p must be a probability"),
        (lambda: RandomFlip(float("nan")), "p must be a probability"),
        (lambda: ImageTransform((4, 4), (), PixelStatistics((0.0,), (0.0,))), "deviations above 0"),
        (lambda: ImageTransform((4, 4), ())(picture(5, 4)), "must end with 4 x 4 pixels .* but made 4 x 5"),
        (lambda: augmented(ImageTransform((4, 4), ()), "crops"), "crop"),
    ],
)
def test_bad_settings_of_transforms(make, message, own_checks):
    with pytest.raises(ValueError, match=message):
        make()


# image files


PLAIN = ImageTransform((6, 7), (Resize((6, 7)),))
RANDOM = ImageTransform((6, 7), (RandomResizedCrop(7), RandomFlip(), Resize((6, 7))))


@pytest.fixture
def files(tmp_path):
    paths = [photograph(tmp_path / f"{i}.png", 2 * i) for i in range(9)]
    return ImageFiles(paths, PLAIN, augment=RANDOM, workers=3)


def numbers(x):
    """Which pictures these are, by their constant red channel."""
    return ((x[:, 0] * IMAGENET.deviation[0] + IMAGENET.mean[0]).mean((1, 2)) / 10).round().int().tolist()


def test_image_files_stand_in_for_a_tensor(files):
    assert isinstance(files, torch.Tensor)
    assert (files.shape, len(files), files.ndim) == (torch.Size([9, 3, 6, 7]), 9, 4)
    assert (files.dtype, files.device.type, files.numel()) == (torch.float32, "cpu", 9 * 3 * 6 * 7)
    full = torch.stack([PLAIN(Image.open(path)) for path in files.paths])
    for index in (
        torch.tensor([3, 0, 3]),
        torch.tensor([[1, 2], [8, 0]]),
        torch.arange(9) % 2 == 0,
        slice(2, 5),
        slice(None, None, 3),
        slice(7, 100),
        slice(4, 4),
        [5, -1],
        4,
        -2,
        torch.tensor(3),
        torch.empty(0, dtype=torch.int64),
        np.array([1, 2]),
    ):
        got = files[index]
        assert type(got) is torch.Tensor
        assert torch.equal(got, full[index])
    assert numbers(files[torch.tensor([3, 0, 3])]) == [3, 0, 3]
    parts = list(files.split(4))
    assert [len(part) for part in parts] == [4, 4, 1]
    assert torch.equal(torch.cat(parts), full)
    assert torch.equal(torch.stack(list(files)), full)
    with pytest.raises(IndexError, match="out of bounds"):
        files[torch.tensor([9])]
    with pytest.raises(IndexError):
        files[9]


def test_evaluation_is_deterministic_and_independent_of_workers(files, tmp_path):
    before = torch.random.get_rng_state()
    again = ImageFiles(files.paths, PLAIN, workers=1)
    assert torch.equal(files[:], again[:])
    assert torch.equal(files[:], files[:])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_images_are_those_of_the_generator(files):
    def stream(seed):
        return torch.Generator().manual_seed(seed)

    rows = torch.tensor([2, 2, 7, 5])
    first = files.training(stream(0))[rows]
    assert first.shape == (4, 3, 6, 7)
    single = ImageFiles(files.paths, PLAIN, augment=RANDOM, workers=1)
    assert torch.equal(single.training(stream(0))[rows], first)
    assert not torch.equal(files.training(stream(1))[rows], first)
    assert not torch.equal(first[0], first[1])  # the same photograph twice, drawn twice
    assert numbers(first) == [2, 2, 7, 5]
    same = stream(0)
    view = files.training(same)
    assert torch.equal(view[rows[:2]], first[:2])  # images in batches come from one stream
    assert not torch.equal(view[rows[:2]], first[:2])
    # one draw for each image, from the generator alone
    counted = stream(0)
    torch.randint(2**62, (4,), generator=counted)
    assert torch.equal(counted.get_state(), same.get_state())
    assert torch.equal(files[rows], ImageFiles(files.paths, PLAIN)[rows])  # evaluation is as it was


def test_without_steps_for_training_nothing_is_drawn(files):
    plain, stream = ImageFiles(files.paths, PLAIN), torch.Generator().manual_seed(0)
    assert torch.equal(plain.training(stream)[:3], plain[:3])
    assert torch.equal(stream.get_state(), torch.Generator().manual_seed(0).get_state())


def test_copies_and_text(files):
    assert torch.equal(pickle.loads(pickle.dumps(files))[:2], files[:2])
    assert copy.deepcopy(files) is files
    assert "ImageFiles(9 files" in repr(files)
    assert "workers=3" in str(files)


@pytest.mark.bad_input
def test_operations_on_all_images_are_refused(files, own_checks):
    for operation in (
        lambda: files + 1,
        lambda: files.mean(),
        lambda: files.to("meta"),
        lambda: files.clone(),
    ):
        with pytest.raises(ValueError, match=r"read row by row, .* Take rows first, e\.g\. x\[:100\]"):
            operation()
    with pytest.raises(ValueError, match="only be split by rows"):
        files.split(2, dim=1)
    other = ImageTransform((5, 5), (Resize((5, 5)),))
    with pytest.raises(
        ValueError, match=r"images of one size .* training makes \(5, 5\) and evaluation \(6, 7\)"
    ):
        ImageFiles(files.paths, PLAIN, augment=other)


@pytest.mark.parametrize("workers", [1, 3])
def test_damaged_and_missing_images_are_named(files, workers):
    x = ImageFiles(files.paths, PLAIN, workers=workers)
    damaged, lost = Path(x.paths[4]), Path(x.paths[6])
    damaged.write_bytes(damaged.read_bytes()[:60])
    lost.unlink()
    with pytest.raises(ValueError, match=rf"Expected {re.escape(str(damaged))} to be a PNG or JPEG image"):
        x[3:6]
    with pytest.raises(FileNotFoundError, match=rf"in the file {re.escape(str(lost))}.*put it back"):
        x[5:8]
    assert numbers(x[:4]) == [0, 1, 2, 3]


# the three data sets


def rows_of(split, root):
    """Name, class and group of each row."""
    names = [os.path.relpath(path, root).replace(os.sep, "/") for path in split.x.paths]
    return sorted(zip(names, split.y.tolist(), split.group.tolist(), strict=True))


MAKERS = {
    "waterbirds": (make_waterbirds, load_waterbirds, groups._WATERBIRDS),
    "celeba": (make_celeba, load_celeba, groups._CELEBA),
    "camelyon17": (make_camelyon17, load_camelyon17, groups._CAMELYON17),
}


@pytest.fixture(params=MAKERS)
def made(request, tmp_path):
    make, load, known = MAKERS[request.param]
    root, rows = make(tmp_path)
    return tmp_path, root, rows, load, known


def test_waterbirds(tmp_path):
    root, rows = make_waterbirds(tmp_path)
    data = load_waterbirds(data_dir=tmp_path)
    assert (data.name, data.task) == ("waterbirds", "classification")
    for number, split in enumerate((data.train, data.validation, data.test)):
        expected = sorted((name, y, 2 * y + place) for name, y, part, place in rows if part == number)
        assert rows_of(split, root) == expected
        assert split.x.shape == (len(expected), 3, 224, 224)
    assert data.train.group.bincount().tolist() == [3, 3, 3, 3]
    i = data.test.x.paths.index(str(root / rows[-1][0]))
    image = Image.open(root / rows[-1][0]).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    expected = (pixels_of(image)[16:240, 16:240] / 255 - MEAN) / DEVIATION
    np.testing.assert_allclose(data.test.x[i].permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("form", ["txt", "csv", "published"])
@pytest.mark.parametrize(
    "images", ["img_align_celeba", "img_align_celeba/img_align_celeba", "Img/img_align_celeba"]
)
def test_celeba(tmp_path, form, images):
    root, rows = make_celeba(tmp_path, form, images)
    data = load_celeba(data_dir=tmp_path)
    for number, split in enumerate((data.train, data.validation, data.test)):
        expected = sorted((name, y, 2 * y + male) for name, y, male, part in rows if part == number)
        assert rows_of(split, root / images) == expected
    assert data.train.x.shape == (8, 3, 224, 224)
    other = load_celeba(data_dir=tmp_path, target="Male", confounder="Hat", size=32)
    assert rows_of(other.test, root / images) == sorted(
        (name, male, 2 * male + 1) for name, _, male, part in rows if part == 2
    )
    assert other.test.x.shape[2:] == (32, 32)


def test_celeba_evaluation_is_the_middle_square(tmp_path):
    make_celeba(tmp_path)
    data = load_celeba(data_dir=tmp_path)
    image = Image.open(data.test.x.paths[0]).convert("RGB")
    square = Image.fromarray(np.asarray(image)[20:198].copy()).resize((224, 224), Image.Resampling.BILINEAR)
    expected = (pixels_of(square) / 255 - MEAN) / DEVIATION
    np.testing.assert_allclose(data.test.x[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("validation", ["ood", "id"])
def test_camelyon17(tmp_path, validation):
    root, rows = make_camelyon17(tmp_path)
    data = load_camelyon17(data_dir=tmp_path, validation=validation)

    def chosen(keep):
        return sorted((name, y, centre) for name, y, centre, split in rows if keep(centre, split))

    assert rows_of(data.train, root) == chosen(lambda centre, split: centre in (0, 3, 4) and split == 0)
    if validation == "ood":  # all of hospital 1, whatever the column says
        assert rows_of(data.validation, root) == chosen(lambda centre, split: centre == 1)
    else:
        assert rows_of(data.validation, root) == chosen(
            lambda centre, split: centre in (0, 3, 4) and split == 1
        )
    assert rows_of(data.test, root) == chosen(lambda centre, split: centre == 2)
    raw = pixels_of(Image.open(data.test.x.paths[0]))
    expected = (raw / 255 - MEAN) / DEVIATION
    np.testing.assert_allclose(data.test.x[0].permute(1, 2, 0).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("augment", ["crop", "flip", "none"])
@pytest.mark.parametrize("name", ["waterbirds", "celeba"])
def test_training_transforms(tmp_path, name, augment):
    make, load, _ = MAKERS[name]
    make(tmp_path)
    x = load(data_dir=tmp_path, augment=augment, size=16).train.x
    ratio = (3 / 4, 4 / 3) if name == "waterbirds" else (1.0, 4 / 3)
    crop = ImageTransform((16, 16), (RandomResizedCrop(16, (0.7, 1.0), ratio), RandomFlip(0.5)))
    evaluation = ImageTransform(
        (16, 16),
        (Resize((18, 18)), CentreCrop(16)) if name == "waterbirds" else (CentreCrop(178), Resize((16, 16))),
    )
    flip = ImageTransform((16, 16), (*evaluation.steps, RandomFlip(0.5)))
    same = ImageFiles(x.paths, evaluation, augment={"crop": crop, "flip": flip, "none": None}[augment])
    assert torch.equal(x[:2], same[:2])
    drawn = [files.training(torch.Generator().manual_seed(3))[:4] for files in (x, same)]
    assert torch.equal(*drawn)
    assert torch.equal(drawn[0], x[:4]) == (augment == "none")


def test_camelyon17_flips_only_if_asked(tmp_path):
    make_camelyon17(tmp_path)
    for augment in ("none", "flip"):
        x = load_camelyon17(data_dir=tmp_path, augment=augment).train.x
        drawn, plain = x.training(torch.Generator().manual_seed(0))[:], x[:]
        is_same, is_mirrored = (
            torch.tensor([torch.equal(a, b) for a, b in zip(drawn, other, strict=True)])
            for other in (plain, plain.flip(-1))
        )
        assert (is_same | is_mirrored).all()
        assert bool(is_mirrored.any()) == (augment == "flip")
        assert is_same.any()


def test_loading_opens_no_image_and_reading_opens_those_asked_for(made, monkeypatch):
    folder, _, _, load, _ = made
    opened = []
    whole, content = Path.read_bytes, Path.open

    def spy(real):
        def read(path, *args, **kwargs):
            if path.suffix in (".jpg", ".png"):
                opened.append(str(path))
            return real(path, *args, **kwargs)

        return read

    monkeypatch.setattr(Path, "read_bytes", spy(whole))
    monkeypatch.setattr(Path, "open", spy(content))
    monkeypatch.setattr(Image, "open", lambda *_, real=Image.open, **kw: opened.append("?") or real(*_, **kw))
    data = load(data_dir=folder, size=16)
    assert opened == []
    _ = (data.train.x.shape, len(data.test.x), repr(data.train.x), data.train.group.bincount())
    assert opened == []
    data.train.x[torch.tensor([1, 0])]
    assert set(opened) - {"?"} == set(data.train.x.paths[:2])


def test_seeds_order_the_rows_and_change_nothing_else(made):
    folder, root, _, load, _ = made
    first, again, other = (load(seed, data_dir=folder) for seed in (0, 0, 1))
    assert first.train.x.paths == again.train.x.paths
    assert first.train.x.paths != other.train.x.paths
    for part in ("train", "validation", "test"):
        assert rows_of(getattr(first, part), root) == rows_of(getattr(other, part), root)


def test_rows_images_and_labels_belong_together(made):
    folder, _, rows, load, _ = made
    data = load(5, data_dir=folder, size=16)
    number = {Path(row[0]).name: i for i, row in enumerate(rows)}
    shift = 0 if load is load_camelyon17 else 1  # pictures of the other two count from one
    for split in (data.train, data.validation, data.test):
        red = split.x[:][:, 0] * IMAGENET.deviation[0] + IMAGENET.mean[0]
        for path, y, image in zip(split.x.paths, split.y, red, strict=True):
            i = number[Path(path).name]
            assert abs(float(image.mean()) - 5 * (i + shift)) < 2  # JPEG moves colours a little
            assert rows[i][1] == y


def test_both_averages_can_be_computed(tmp_path):
    """Over rows, and over groups weighted by their shares of the training rows."""
    make_waterbirds(tmp_path, copies=(3, 1, 2))
    data = load_waterbirds(data_dir=tmp_path)
    keep = torch.cat([(data.train.group == g).nonzero()[:n, 0] for g, n in enumerate((3, 1, 1, 2))])
    share = data.train.group[keep].bincount(minlength=4) / len(keep)
    right = (data.test.group != 1).double()  # a model that fails on group 1 alone
    by_group = torch.stack([right[data.test.group == g].mean() for g in range(4)])
    assert float(right.mean()) == 0.75
    assert float((share * by_group).sum()) == pytest.approx(6 / 7)


@pytest.mark.parametrize(
    ("name", "counts"), [("waterbirds", (12, 4, 8)), ("celeba", (8, 8, 8)), ("camelyon17", (12, 8, 8))]
)
def test_counts_are_checked_where_the_set_is_complete(tmp_path, monkeypatch, name, counts):
    make, load, known = MAKERS[name]

    def publish(**changes):
        changed = dataclasses.replace(getattr(groups, f"_{name.upper()}"), **changes)
        monkeypatch.setattr(groups, f"_{name.upper()}", changed)

    _, rows = make(tmp_path)
    with pytest.warns(
        EllipticWarning, match=rf"lists {len(rows)} images, but {known.n_rows} were published"
    ) as caught:
        load(data_dir=tmp_path)
    assert caught[0].filename == __file__
    publish(n_rows=len(rows))
    with pytest.raises(ValueError, match=r"to have parts of sizes \d+ / \d+ / \d+, but they are \d+ / "):
        load(data_dir=tmp_path)
    publish(sizes=counts)
    if name != "camelyon17":
        with pytest.raises(ValueError, match=r"to have training groups of sizes (3498|71629) / "):
            load(data_dir=tmp_path)
        publish(training_groups=(counts[0] // 4,) * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(data_dir=tmp_path)
        if name == "celeba":  # other attributes make groups of other sizes
            publish(training_groups=(0, 0, 0, 0))
            load(data_dir=tmp_path, target="Hat")
        if name == "camelyon17":
            with pytest.raises(ValueError, match=r"parts of sizes 12 / 33560 / 8, but they are 12 / 12 / 8"):
                load(data_dir=tmp_path, validation="id")


def test_published_counts_are_consistent():
    for known in (groups._WATERBIRDS, groups._CELEBA):
        assert sum(known.training_groups) == known.sizes[0]
        assert sum(known.sizes) == known.n_rows
    assert sum(groups._CAMELYON17.sizes) + groups._N_ASIDE == groups._CAMELYON17.n_rows


def test_other_places_of_the_folders(tmp_path):
    for name, (make, load, known) in MAKERS.items():
        for i, place in enumerate(known.folders):
            folder = tmp_path / name / str(i)
            root, _ = make(folder)
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            root.rename(folder / place)
            assert load(data_dir=folder).train.n_rows >= 8


# what goes wrong


@pytest.mark.bad_input
def test_missing_folders_tables_and_images(made, own_checks):
    folder, root, rows, load, known = made
    with pytest.raises(FileNotFoundError) as caught:
        load(data_dir=folder / "nowhere")
    for needed in (str(folder / "nowhere" / known.folders[-1]), "ELLIPTICA_DATA", "--data-dir", known.source):
        assert needed in str(caught.value)
    victims = sorted(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
    names = [path.relative_to(root).as_posix() for path in victims]
    victims[1].unlink()
    victims[2].unlink()
    lines = {Path(row[0]).name: i + 2 + (known.name == "celeba") for i, row in enumerate(rows)}
    first = min((victims[1], victims[2]), key=lambda path: lines[path.name])
    with pytest.raises(FileNotFoundError) as caught:
        load(data_dir=folder)
    text = str(caught.value)
    assert f"all {len(names)} images" in text
    assert "2 are missing" in text
    assert f"{first} (line {lines[first.name]})" in text
    assert known.source in text
    for path in (*root.glob("*.csv"), *root.glob("*.txt")):
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=f"Expected {re.escape(str(root))} to hold (metadata|list_attr)"
    ):
        load(data_dir=folder)


def change(path, old, new, count=1):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            ".jpg,0,0,1,",
            ".jpg,2,0,1,",
            r"Expected line 5 of .*metadata\.csv to have y to be one of 0, 1, but it has '2'",
        ),
        (".jpg,0,0,1,", ".jpg,0,3,1,", r"line 5 of .* split to be one of 0, 1, 2, but it has '3'"),
        (".jpg,0,0,1,", ".jpg,0,0,5,", r"line 5 of .* place to be one of 0, 1, but it has '5'"),
        (".jpg,0,0,1,", ".jpg,0,0,,", r"line 5 of .* place to be one of 0, 1, but it has ''"),
        (
            ".jpg,0,0,1,",
            ".jpg,0,1,",
            r"line 5 of .* to have 6 values, but it has 5 \(is the file cut off\?\)",
        ),
        ("place,", "ground,", "columns img_filename, y, split, place, but place is missing: it has img_id"),
        ("002.Some_bird/Bird_0_1.jpg", "/etc/passwd.jpg", r"line 2 of .* a file below .* '/etc/passwd\.jpg'"),
        ("002.Some_bird/Bird_0_1.jpg", "../../x/a.jpg", "line 2 of .* a file below"),
        (".jpg\r\n", ".jpg\r\n\r\n", r"line 3 of .* to have 6 values, but it has 0"),
    ],
)
def test_bad_tables_of_waterbirds(tmp_path, old, new, message, own_checks):
    root, _ = make_waterbirds(tmp_path)
    path = root / "metadata.csv"
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode(), 1))
    with pytest.raises(ValueError, match=message) as caught:
        load_waterbirds(data_dir=tmp_path)
    assert groups._WATERBIRDS.source in str(caught.value)


@pytest.mark.bad_input
def test_empty_tables_and_parts(tmp_path, own_checks):
    root, _ = make_waterbirds(tmp_path)
    path = root / "metadata.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.split(",")[3] != "1")]))
    with pytest.raises(ValueError, match="it lists none for validation"):
        load_waterbirds(data_dir=tmp_path)
    path.write_text(lines[0] + "\n")
    with pytest.raises(ValueError, match="to list images, but it lists none"):
        load_waterbirds(data_dir=tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"img_filename, y, split, place is missing: it has none"):
        load_waterbirds(data_dir=tmp_path)
    path.write_text("\n".join(lines) + "\n\n\n")  # empty lines at the end do no harm
    assert load_waterbirds(data_dir=tmp_path).train.n_rows == 12


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "list_attr_celeba.txt",
            "000003.jpg -1 -1",
            "000003.jpg -1  0",
            r"line 5 of .* Blond_Hair to be one of -1, 1",
        ),
        ("list_attr_celeba.txt", "000003.jpg -1 -1", "000003.jpg -1", r"line 5 of .* 5 values, but it has 4"),
        (
            "list_attr_celeba.txt",
            "24\n",
            "25\n",
            r"as its first line says, '25', but it has 24\. The file is cut off",
        ),
        ("list_attr_celeba.txt", "Male", "Mail", r"one of 'Bald'.* got 'Male'"),
        (
            "list_eval_partition.txt",
            "000024.jpg 2",
            "000024.jpg 4",
            r"line 1 of .* partition to be one of 0, 1, 2",
        ),
        (
            "list_eval_partition.txt",
            "000024.jpg 2\n",
            "",
            r"line 26 of .* an image that .*partition\.txt lists, too",
        ),
    ],
)
def test_bad_tables_of_celeba(tmp_path, file, old, new, message, own_checks):
    root, _ = make_celeba(tmp_path)
    change(root / file, old, new)
    with pytest.raises(ValueError, match=message):
        load_celeba(data_dir=tmp_path)


@pytest.mark.bad_input
@pytest.mark.parametrize("form", ["txt", "csv"])
def test_unknown_attributes(tmp_path, form, own_checks):
    make_celeba(tmp_path, form)
    with pytest.raises(ValueError, match=r"got 'Blond_hair'"):
        load_celeba(data_dir=tmp_path, target="Blond_hair")
    with pytest.raises(ValueError, match="got 'image_id'"):
        load_celeba(data_dir=tmp_path, confounder="image_id")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",21792,0,0,0,0", ",21792,9,0,0,0", r"line 2 of .* tumor to be one of 0, 1, but it has '9'"),
        (
            ",21792,0,0,0,0",
            ",21792,0,0,7,0",
            r"line 2 of .* center to be one of 0, 1, 2, 3, 4, but it has '7'",
        ),
        (",21792,0,0,0,0", ",21792,0,0,0,2", r"line 2 of .* split to be one of 0, 1, but it has '2'"),
        ("center", "centre", "but center is missing"),
    ],
)
def test_bad_tables_of_camelyon17(tmp_path, old, new, message, own_checks):
    root, _ = make_camelyon17(tmp_path)
    change(root / "metadata.csv", old, new)
    with pytest.raises(ValueError, match=message):
        load_camelyon17(data_dir=tmp_path)


@pytest.mark.bad_input
def test_bad_settings(made, own_checks):
    folder, _, _, load, _ = made
    with pytest.raises(ValueError, match="augment must be one of"):
        load(data_dir=folder, augment="turn")
    if load is load_camelyon17:
        with pytest.raises(ValueError, match="validation must be one of 'ood', 'id'"):
            load(data_dir=folder, validation="both")
        with pytest.raises(ValueError, match="augment must be one of"):
            load(data_dir=folder, augment="crop")


# catalogue, training loop


def test_catalogue_finds_the_layouts(made):
    folder, _, _, _, known = made
    name = known.name
    entry = catalogue.find_entry(name)
    folders = {Path(form[0].path).parent.as_posix().removesuffix("/Anno") for form in entry.forms}
    assert folders == set(known.folders)
    assert entry.licence in ("non-commercial research", "CC0 1.0")
    by_name = {item.entry.name: item.status for item in catalogue.list_datasets(folder)}
    assert by_name[name] == "present"
    others = {"waterbirds", "celeba", "camelyon17"} - {name}
    assert {by_name[other] for other in others} == {"missing"}
    with pytest.raises(ValueError, match=f"{name} cannot be downloaded by this command"):
        catalogue.fetch(name, folder / "nowhere")


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
        assert type(batch.x) is torch.Tensor
        assert torch.equal(batch.y, data.train.y[batch.index])
        assert torch.equal(batch.group, data.train.group[batch.index])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    expected = model(data.test.x[:]).detach()
    torch.testing.assert_close(predictions(model, data.test, cpu), expected)
    assert data.n_features == 192


@pytest.mark.needs_data
@pytest.mark.parametrize("name", MAKERS)
def test_real_files(data_dir, name):
    _, load, known = MAKERS[name]
    if not any((data_dir / folder).is_dir() for folder in known.folders):
        pytest.skip(f"{name} is absent")
    data = load(data_dir=data_dir)
    assert torch.isfinite(data.train.x.training(torch.Generator())[:4]).all()
    assert image_files.ImageFiles is type(data.test.x)
