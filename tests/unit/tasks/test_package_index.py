"""The settings of pip, as the farm reads them."""

import pytest

from farm.tasks.sdist.package_index import PYPI, IndexSettings, read_index_settings


@pytest.mark.parametrize(
    ("listing", "settings"),
    [
        ("", IndexSettings((PYPI,))),
        ("global.index-url='https://a/simple'", IndexSettings(("https://a/simple",))),
        (
            ":env:.index-url='https://env/'\nglobal.index-url='https://global/'\ninstall.index-url='https://install/'",
            IndexSettings(("https://env/",)),
        ),
        (
            "download.extra-index-url='https://b/ https://c/'\nglobal.extra-index-url='https://d/'",
            IndexSettings((PYPI, "https://b/", "https://c/")),
        ),
        ("global.extra-index-url='\\nhttps://b/\\nhttps://c/'", IndexSettings((PYPI, "https://b/", "https://c/"))),
        ("global.no-index='true'\n:env:.find-links='/wheels https://x/'", IndexSettings((), ("/wheels", "https://x/"))),
        (
            "global.trusted-host='a b:80'\nglobal.cert='/ca.pem'\nglobal.client-cert='/me.pem'\nglobal.proxy='http://p'",
            IndexSettings((PYPI,), (), ("a", "b:80"), "/ca.pem", "/me.pem", "http://p"),
        ),
        ("wheel.index-url='https://not-read/'\nglobal.timeout='3'", IndexSettings((PYPI,))),
    ],
)
def test_index_settings_match_pip(listing: str, settings: IndexSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    assert read_index_settings(listing) == settings
