"""Attacks from a Dockerfile: each first wins under ``docker build --network host``, then gets nothing from the farm."""

import base64
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest

from farm.build_config import read_build_settings
from farm.tasks import BASE_IMAGE
from sandboxes.errors import ImageError
from sandboxes.images.confinement import BuildLimits, PackageIndexes, PipIndex
from tests.support.attacks.building import Builder, dockerfile, everything_in, python, unused_name

PASSWORD = "hunter-5c02"
TRUST = "8d1f: the trust of this machine"
BIG = 300 << 20
LIMITS = BuildLimits(memory_mib=128, processes=64, disk_mib=100)


class Service(ThreadingHTTPServer):
    """An HTTP service of the machine: its gateway to an attacker, and a package index with a login to pip."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("0.0.0.0", 0), Handler)
        self.visits: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Service)
        login = base64.b64encode(f"farm:{PASSWORD}".encode()).decode()
        self.server.visits.append(self.path)
        if self.path == "/simple/loot/":
            body = b'<a href="/files/loot-1.0.tar.gz">loot-1.0.tar.gz</a>'
        elif self.path == "/files/loot-1.0.tar.gz":
            body = b"the package"
        else:
            body = b"the gateway"
        permitted = not self.path.startswith(("/simple", "/files")) or self.headers["Authorization"] == f"Basic {login}"
        self.send_response(200 if permitted else 401)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body if permitted else b"")

    do_HEAD = do_GET  # noqa: N815  # the name is the base class's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Write no log."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def name(docker_client: docker.DockerClient) -> Iterator[str]:
    with unused_name(docker_client) as found:
        yield found


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(read_build_settings(), tmp_path)


def own_address() -> str:
    """The address of this machine in its own network, or loopback if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(asking.getsockname()[0])


CALL = """
import os, socket
def won(what, address, family=socket.AF_INET, say=b"GET / HTTP/1.0\\r\\n\\r\\n", sign=b"the gateway"):
    try:
        with socket.socket(family) as way:
            way.settimeout(5)
            way.connect(address)
            way.sendall(say)
            answer = b""
            while piece := way.recv(4096):
                answer += piece
                if sign in answer: break
        if sign in answer: print("WON:" + what, flush=True)
    except OSError as error: print(what, error, flush=True)
port = PORT
won("loopback", ("127.0.0.1", port))
won("lan", ("OWN", port))
won("number", ("127.1", port))
won("abstract", "\\0ABSTRACT", socket.AF_UNIX)
for target in "127.0.0.1 OWN localhost [::1] 0x7f000001 2130706433 [::ffff:127.0.0.1] 169.254.1.1".split():
    for at in (3128, 3129):
        forward = f"GET http://{target}:{port}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
        won(f"forward:{at}:{target}", ("127.0.0.1", at), say=forward.encode())
        tunnel = f"CONNECT {target}:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\nGET / HTTP/1.0\\r\\n\\r\\n"
        won(f"tunnel:{at}:{target}", ("127.0.0.1", at), say=tunnel.encode())
for path in ("/pip/0/../../", "/npm/../../", "/npm/%2e%2e/", f"/file/{'0' * 32}/http/127.0.0.1:{port}/", "//h/"):
    mirrored = f"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
    won(f"mirror:{path}", ("127.0.0.1", 3129), say=mirrored.encode())
"""


@pytest.mark.docker
async def test_build_step_calling_the_machine_reaches_nothing(name: str, builder: Builder, service: Service) -> None:
    abstract = f"farm-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{abstract}")
        listener.listen()
        answering = threading.Thread(target=_answer_one, args=(listener,), daemon=True)
        answering.start()
        code = CALL.replace("PORT", str(service.port)).replace("OWN", own_address()).replace("ABSTRACT", abstract)
        assert await builder.naive(name, dockerfile(python(code)))
        assert builder.wins == ["abstract", "lan", "loopback", "number"]
        answering.join()
        service.visits.clear()
        await builder.farm(name, dockerfile(python(code)))
    assert builder.wins == []
    assert service.visits == []


def _answer_one(listener: socket.socket) -> None:
    way, _ = listener.accept()
    with way:
        way.recv(100)
        way.sendall(b"the gateway")


STEAL = "RUN mkdir /loot; cp -r /run /loot; cat /proc/self/environ /proc/1/environ > /loot/environ; true"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def _certificates() -> str:
    return CERTIFICATES.read_text()


@pytest.mark.docker
async def test_build_step_copying_build_secrets_finds_none(
    name: str, builder: Builder, service: Service, docker_client: docker.DockerClient, tmp_path: Path
) -> None:
    url = f"http://farm:{PASSWORD}@127.0.0.1:{service.port}/simple"
    bundle = tmp_path / "trust.crt"
    bundle.write_text(f"{TRUST}\n{_certificates()}")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}\n")
    lent = [flag for each in (bundle, tmp_path / "pip.conf") for flag in ("--secret", f"id={each.name},src={each}")]
    mounts = " ".join(f"--mount=type=secret,id={each},target=/run/{each}" for each in ("trust.crt", "pip.conf"))
    assert await builder.naive(name, dockerfile(STEAL.replace("RUN", f"RUN {mounts}")), *lent)
    taken = everything_in(docker_client, name)
    assert PASSWORD.encode() in taken
    assert TRUST.encode() in taken

    download = "RUN python3 -m pip download -q --no-deps --no-build-isolation --dest /loot loot || true"
    fetch = python(
        "import re, urllib.request as r\n"
        "page = r.urlopen('http://127.0.0.1:3129/pip/0/loot/').read().decode()\n"
        "print(r.urlopen('http://127.0.0.1:3129' + re.search('href=\"([^\"]*)', page)[1]).read())"
    )
    indexes = PackageIndexes(PipIndex((url,)))
    await builder.farm(name, dockerfile(STEAL, download, fetch), ca_bundle=bundle, read_indexes=lambda: indexes)
    assert "the package" in builder.output
    assert "/files/loot-1.0.tar.gz" in service.visits
    taken = everything_in(docker_client, name)
    for secret in (PASSWORD, TRUST, f":{service.port}/"):
        assert secret.encode() not in taken


EAT = {
    "memory": (f"held = b'x' * {BIG}", "exit code|memory"),
    "shared memory": (f"open('/dev/shm/x', 'wb').write(b'x' * (60 << 20)); held = b'x' * {BIG}", "exit code|memory"),
    "processes": (
        "import os, time\nfor _ in range(300):\n if not os.fork(): time.sleep(2); os._exit(0)",
        "processes|exit",
    ),
    "uncounted memory": (
        "import resource, socket, time\nmost = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\nheld = []\nfor _ in range(2000):\n"
        " s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9))\n"
        " s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n"
        " for _ in range(2): s.send(b'x' * 32000, 0x8000)\n held.append(s)\n"
        "time.sleep(8)",
        "corked UDP",
    ),
    "connections": (
        "import socket, time\nlisteners = []\nfor at in range(40_000):\n"
        " if at % 1000 == 0: s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(4096); listeners.append(s)\n"
        " c = socket.socket(); c.connect(s.getsockname()); c.close()\n"
        "time.sleep(8)",
        "TCP connections",
    ),
    "disk": (
        "import time\nbig = open('/big', 'wb')\nfor _ in range(300): big.write(b'x' * (1 << 20))\ntime.sleep(3)",
        "MiB to the disk",
    ),
    "deleted file": (
        "import os, time\nheld = open('/big', 'wb'); os.unlink('/big')\n"
        "for _ in range(300): held.write(b'x' * (1 << 20))\nheld.flush(); time.sleep(3)",
        "MiB to the disk",
    ),
    "files": (
        "import os, time\nfor at in range(60_000): os.mknod(f'/run/{at}')\ntime.sleep(10)",
        "MiB to the disk",
    ),
}


@pytest.mark.docker
@pytest.mark.parametrize("what", EAT)
async def test_build_step_eating_the_machine_is_ended(name: str, builder: Builder, what: str) -> None:
    code, reason = EAT[what]
    assert await builder.naive(name, dockerfile(python(code))), builder.output
    limits = replace(LIMITS, disk_mib=16) if what == "files" else LIMITS
    with pytest.raises(ImageError, match=reason):
        await builder.farm(name, dockerfile(python(code)), limits=limits)


HIDE = """
import array, ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
kept = []
def nested():
    for _ in range(20):
        os.mkdir("d" * 250)
        os.chdir("d" * 250)
def mapped(file):
    os.unlink(file.name)
    libc.mmap(None, 1 << 20, 1, 1, file.fileno(), 0)
def in_flight(file):
    os.unlink(file.name)
    kept.append(socket.socketpair())
    kept[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))])
if "WAY" == "nested":
    nested()
for number in range(8):
    with open(f"file{number}", "wb+") as file:
        for _ in range(40):
            file.write(os.urandom(1 << 20))
        if "WAY" != "nested":
            file.flush()
            WAY(file)
time.sleep(SECONDS)
"""


@pytest.mark.docker
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("nested", "longer than the kernel takes"),
        ("mapped", "MiB to the disk"),
        ("in_flight", "unix sockets"),
    ],
)
async def test_files_hidden_from_the_meter_end_the_build(name: str, builder: Builder, way: str, reason: str) -> None:
    def text(seconds: int) -> str:
        return dockerfile(python(HIDE.replace("WAY", way).replace("SECONDS", str(seconds))))

    assert await builder.naive(name, text(0)), builder.output
    with pytest.raises(ImageError, match=reason):
        await builder.farm(name, text(60), limits=LIMITS)


@pytest.mark.docker
async def test_stages_that_share_a_limit_are_ended(name: str, builder: Builder) -> None:
    """Each takes less than the limit, all together more."""
    hold = python(f"import time; held = b'x' * {80 << 20}; time.sleep(4); open('/done', 'w')")
    stages = [f"FROM {BASE_IMAGE} AS s{at}\n{hold} {at}" for at in range(4)]
    text = "\n".join([*stages, f"FROM {BASE_IMAGE}", *(f"COPY --from=s{at} /done /{at}" for at in range(4)), ""])
    assert await builder.naive(name, text)
    with pytest.raises(ImageError, match="MiB of memory"):
        await builder.farm(name, text, limits=LIMITS)


@pytest.mark.docker
async def test_copies_that_multiply_a_file_are_ended(name: str, builder: Builder) -> None:
    """No step writes more than the limit; the engine's own copies do."""

    def multiplied() -> str:
        fill = python(f"open('/big', 'wb').write(b'{secrets.token_hex(8)}' * {5 << 20})")
        first = [f"FROM {BASE_IMAGE} AS big", fill, f"FROM {BASE_IMAGE}"]
        return "\n".join([*first, *(f"COPY --from=big /big /{at}" for at in range(12)), ""])

    assert await builder.naive(name, multiplied())
    text = multiplied()
    with pytest.raises(ImageError, match="MiB to the disk"):
        await builder.farm(name, text, limits=LIMITS)


@pytest.mark.docker
async def test_build_engine_fetches_nothing_from_machine(name: str, builder: Builder, service: Service) -> None:
    internal = f"127.0.0.1:{service.port}"
    attacks = {
        "add": dockerfile(f"ADD http://{internal}/v1/add /loot"),
        "add by variable": dockerfile(f"ARG U=http://{internal}/v1/variable", "ADD $U /loot"),
        "add in a continued name": dockerfile("AD\\", f"D http://{internal}/v1/name /loot"),
        "from": f"FROM {internal}/loot\n",
        "from by variable": f"ARG R={internal}\nFROM ${{R}}/loot\n",
        "from by a continued variable": f"ARG B={BASE_IMAGE}\nARG \\\n B={internal}/loot\nFROM $B\n",
        "from by a variable of a continued name": f"AR\\\nG B={internal}/loot\nFROM ${{B:-{BASE_IMAGE}}}\n",
        "copy": dockerfile(f"COPY --from={internal}/loot / /loot"),
        "syntax": f"# syntax={internal}/loot\nFROM {BASE_IMAGE}\n",
    }
    for what, text in attacks.items():
        service.visits.clear()
        await builder.naive(name, text)
        assert service.visits, what
        service.visits.clear()
        with pytest.raises(ImageError):
            await builder.farm(name, text)
        assert service.visits == [], what


@pytest.mark.docker
async def test_base_image_with_trigger_fetches_nothing(name: str, builder: Builder, service: Service) -> None:
    base = f"{name}-base"
    assert await builder.naive(base, dockerfile(f"ONBUILD ADD http://127.0.0.1:{service.port}/trigger /loot"))
    assert service.visits == []
    await builder.naive(name, f"FROM {base}\n")
    assert service.visits
    service.visits.clear()
    with pytest.raises(ImageError, match="ONBUILD of"):
        await builder.farm(name, f"FROM {base}\n")
    assert service.visits == []
