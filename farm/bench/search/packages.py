"""Packages for the search benchmark: two consecutive releases of each, downloaded and never stored here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackageRelease:
    """Two releases of a package. ``old`` and ``new``: version and SHA-256 of the source distribution."""

    package: str
    old: tuple[str, str]
    new: tuple[str, str]


RELEASES = (
    PackageRelease(
        "flask",
        ("3.0.3", "ceb27b0af3823ea2737928a4d99d125a06175b8512c445cbd9a9ce200ef76842"),
        ("3.1.0", "5f873c5184c897c8d9d1b05df1e3d01b14910ce69607a117bd3277098a5836ac"),
    ),
    PackageRelease(
        "click",
        ("8.1.3", "7682dc8afb30297001674575ea00d1814d808d6a36af415a82bd481d37ba7b8e"),
        ("8.1.4", "b97d0c74955da062a7d4ef92fadb583806a585b2ea81958a81bd72726cbb8e37"),
    ),
    PackageRelease(
        "werkzeug",
        ("3.0.1", "507e811ecea72b18a404947aded4b3390e1db8f826b494d76550ef45bb3b1dcc"),
        ("3.0.2", "e39b645a6ac92822588e7b39a692e7828724ceae0b0d702ef96701f90e70128d"),
    ),
    PackageRelease(
        "rich",
        ("13.7.0", "5cb5123b5cf9ee70584244246816e9114227e0b98ad9176eede6ad54bf5403fa"),
        ("13.7.1", "9be308cb1fe2f1f57d67ce99e95af38a1e2bc71ad9813b0e247cf7ffbcc3a432"),
    ),
    PackageRelease(
        "tornado",
        ("6.3.3", "e7d8db41c0181c80d76c982aacc442c0783a2c54d6400fe028954201a2e032fe"),
        ("6.4", "72291fa6e6bc84e626589f1c29d90a5a6d593ef5ae68052ee2ef000dfd273dee"),
    ),
    PackageRelease(
        "networkx",
        ("3.2", "bda29edf392d9bfa5602034c767d28549214ec45f620081f0b74dc036a1fbbc1"),
        ("3.2.1", "9f1bb5cf3409bf324e0a722c20bdb4c20ee39bf1c30ce8ae499c8502b0b5e0c6"),
    ),
    PackageRelease(
        "boltons",
        ("23.0.0", "8c50a71829525835ca3c849c7ed2511610c972b4dddfcd41a4a5447222beb4b0"),
        ("23.1.0", "ab4023d57a69609f7742dcc21c12bb57f2970d278d315f28eb2d3110a64114a8"),
    ),
    PackageRelease(
        "marshmallow",
        ("3.20.2", "4c1daff273513dc5eb24b219a8035559dc573c8f322558ef85f5438ddd1236dd"),
        ("3.21.0", "20f53be28c6e374a711a16165fb22a8dc6003e3f7cda1285e3ca777b9193885b"),
    ),
    PackageRelease(
        "arrow",
        ("1.2.3", "3934b30ca1b9f292376d9db15b19446088d12ec58629bc3f0da28fd55fb633a1"),
        ("1.3.0", "d4540617648cb5f895730f1ad8c82a65f2dad0166f57b75f3ca54759c4d67a85"),
    ),
    PackageRelease(
        "sqlparse",
        ("0.4.3", "69ca804846bb114d2ec380e4360a8a340db83f0ccf3afceeb1404df028f57268"),
        ("0.4.4", "d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c"),
    ),
    PackageRelease(
        "requests",
        ("2.31.0", "942c5a758f98d790eaed1a29cb6eefc7ffb0d1cf7af05c3d2791656dbd6ad1e1"),
        ("2.32.0", "fa5490319474c82ef1d2c9bc459d3652e3ae4ef4c4ebdd18a21145a47ca4b6b8"),
    ),
    PackageRelease(
        "jinja2",
        ("3.1.2", "31351a702a408a9e7595a8fc6150fc3f43bb6bf7e319770cbc0db9df9437e852"),
        ("3.1.3", "ac8bd6544d4bb2c9792bf3a159e80bba8fda7f07e81bc3aed565432d5925ba90"),
    ),
    PackageRelease(
        "more-itertools",
        ("10.1.0", "626c369fa0eb37bac0291bce8259b332fd59ac792fa5497b59837309cd5b114a"),
        ("10.2.0", "8fccb480c43d3e99a00087634c06dd02b0d50fbf088b380de5a41a015ec239e1"),
    ),
    PackageRelease(
        "httpx",
        ("0.26.0", "451b55c30d5185ea6b23c2c793abf9bb237d2a7dfb901ced6ff69ad37ec1dfaf"),
        ("0.27.0", "a0cb88a46f32dc874e04ee956e4c2764aba2aa228f650b06788ba6bda2962ab5"),
    ),
    PackageRelease(
        "humanize",
        ("4.4.0", "efb2584565cc86b7ea87a977a15066de34cdedaf341b11c851cfcfd2b964779c"),
        ("4.5.0", "d6ed00ed4dc59a66df71012e3d69cf655d7d21b02112d435871998969e8aedc8"),
    ),
)
