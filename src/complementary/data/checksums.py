"""SHA-256 of the decoded arrays of the named sets: of the bytes in C order, integers little-endian int64.

Of kmnist only the test arrays could be had when this was written; the CLCIFAR pickles not at all. Simulated
labels have no entry, because PyTorch does not promise the same random numbers for ever; their matrix has.
"""

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
    "kmnist-7011": {
        "train/inputs": "782054ee0fed6ea58de3349dcef53321702aa7b60ab4a30eb66904c9c9c52ec5",
        "train/truth": "d37ba023009c65996c5f1d2e0c0ea0b55ecb3b126aebfaaccd621844f32d8dcf",
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
