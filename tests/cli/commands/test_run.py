"""`pyrometer run`: the command runs unchanged, and its telemetry is sent or stored."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyrometer.train.ship.spool import Spool, spool_folder
from tests.support.otlp_server import Collector, logs, plain, points
from tests.support.rank_processes import RANK, SOURCES

RUN = [sys.executable, "-m", "pyrometer", "run"]


@pytest.fixture
def variables(tmp_path) -> dict[str, str]:
    """An environment with only the variables that a test sets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYROMETER_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(SOURCES), "TMPDIR": str(tmp_path), "PATH": kept["PATH"]}


def run(variables, *arguments: str, cwd=None, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*RUN, "--no-gpus", *arguments], env={**variables, **more}, capture_output=True, text=True, timeout=60, cwd=cwd
    )


def python(script: str) -> list[str]:
    return ["--", sys.executable, "-c", script]


# -- the command runs unchanged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_run_returns_the_exit_code_of_the_command(variables, tmp_path, script, code):
    result = run(variables, "--data", str(tmp_path / "d"), "--", "sh", "-c", f"echo out; echo err >&2; {script}")
    assert (result.returncode, result.stdout) == (code, "out\n")
    assert result.stderr == "err\npyrometer: no PyTorch training was detected in sh.\n"


@pytest.mark.parametrize(("word", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_run_of_a_missing_command_exits_like_a_shell(variables, tmp_path, word, code):
    result = run(variables, "--data", str(tmp_path / "d"), "--", word)
    assert result.returncode == code
    assert result.stderr.startswith(f"pyrometer: {word} cannot be run: ")
    assert result.stderr.count("\n") == 1


def test_run_passes_stdin_to_the_command(variables, tmp_path):
    result = subprocess.run(
        [*RUN, "--no-gpus", "--data", tmp_path / "d", "--", "cat"],
        env=variables,
        input="in",
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout) == (0, "in")


def test_run_passes_arguments_unchanged(variables, tmp_path):
    show = ["python3", "-c", "import sys; print(sys.argv[1:])", "--data", "x", "--", "-y"]
    assert run(variables, "--data", str(tmp_path / "d"), "--", *show).stdout == "['--data', 'x', '--', '-y']\n"
    assert run(variables, "--data", str(tmp_path / "d"), *show).stdout == "['--data', 'x', '--', '-y']\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "No command: pass it after two dashes, like pyrometer run -- torchrun train.py"),
        (["--data", "d", "--server", "http://x", "--", "true"], "Pass --server or --data, not both."),
        (
            ["--server", "nonsense", "--", "true"],
            "PYROMETER_ENDPOINT 'nonsense' is not an address. Example: http://127.0.0.1:8411",
        ),
        (
            ["--redact", "paths,names", "--", "true"],
            "--redact 'names' is not supported. Choose from stacks, samples, exceptions, paths.",
        ),
        (["--run"], "Argument --run: expected one argument. See `pyrometer run --help`."),
    ],
)
def test_run_usage_errors_are_one_line(variables, arguments, sentence):
    result = run(variables, *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"Error: {sentence}\n")


def test_run_continues_without_a_spool(variables, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(variables, "--", "sh", "-c", "echo done; exit 4", PYROMETER_SPOOL=str(tmp_path / "file"))
    assert (result.returncode, result.stdout) == (4, "done\n")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("The command runs without telemetry.\n")


# -- signals ----------------------------------------------------------------------------------------------------------

TRAP = """
import os, signal
def caught(number, frame):
    os.write(1, f"caught {number}\\n".encode())
    os._exit(9)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, caught)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_run_forwards_signals(variables, tmp_path, number):
    process = subprocess.Popen(
        [*RUN, "--no-gpus", "--data", tmp_path / "d", *python(TRAP)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (9, f"caught {int(number)}\n")


WAITS = "echo ready; kill -HUP $$; read x; exit 5"


def test_run_keeps_ignored_signals_ignored(variables, tmp_path):
    process = subprocess.Popen(
        ["nohup", *RUN, "--no-gpus", "--data", tmp_path / "d", "--", "sh", "-c", WAITS],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    process.communicate("\n", timeout=20)
    assert process.returncode == 5


def test_ctrl_c_on_a_terminal_reaches_the_command_once(variables, tmp_path):
    count = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
end = time.monotonic() + 20
while not seen and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print("times", len(seen), flush=True)
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(RUN[0], [*RUN, "--no-gpus", "--data", str(tmp_path / "d"), *python(count)], variables)
    shown = b""
    typed = False
    while True:
        try:
            shown += os.read(terminal, 1000)
        except OSError:
            break
        if b"ready" in shown and not typed:
            typed = True
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"times 1" in shown


def test_run_reaps_orphans_as_the_first_process_of_a_container(variables, tmp_path):
    orphan = "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: os._exit(0)\n    os._exit(0)\nos.wait()\n"
    look = (
        orphan + "time.sleep(0.5)\n"
        "print(os.getppid(), [p for p in os.listdir('/proc') if p.isdecimal() and"
        " ') Z ' in open(f'/proc/{p}/stat').read()])"
    )
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        *RUN,
        "--no-gpus",
        "--data",
        str(tmp_path / "d"),
        *python(look),
    ]
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    if "unshare" in result.stderr:
        pytest.skip(f"needs a process namespace: {result.stderr.strip()}")
    assert (result.returncode, result.stdout) == (0, "1 []\n")


# -- environment of the command ---------------------------------------------------------------------------------------


def test_run_sets_the_variables_of_the_sdk(variables, tmp_path):
    show = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('PYROMETER_')}))"
    result = run(
        variables,
        "--data",
        str(tmp_path / "my data"),
        "--run",
        "r 1",
        "--experiment",
        "sft",
        "--redact",
        "paths",
        *python(show),
    )
    printed = json.loads(result.stdout)
    spool = printed.pop("PYROMETER_SPOOL")
    assert printed == {
        "PYROMETER_ENDPOINT": (tmp_path / "my data").as_uri(),
        "PYROMETER_RUN": "r 1",
        "PYROMETER_EXPERIMENT": "sft",
        "PYROMETER_REDACT": "paths",
    }
    assert Path(spool) == spool_folder({**variables, **printed})


def test_run_keeps_the_sitecustomize_and_path_of_the_user(variables, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.of_the_user = __file__")
    show = (
        "import sys; ours = [path for path in sys.path if 'pyrometer/train' in path]\n"
        "print(of_the_user, sys.modules['sitecustomize'].__file__, ours)"
    )
    path = f"{tmp_path / 'own'}{os.pathsep}{SOURCES}"
    result = run(variables, "--data", str(tmp_path / "d"), *python(show), PYTHONPATH=path)
    theirs = str(tmp_path / "own" / "sitecustomize.py")
    assert result.stdout == f"{theirs} {theirs} []\n"


def test_error_in_the_users_sitecustomize_is_unchanged(variables, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("raise ValueError('theirs')")
    path = f"{tmp_path / 'own'}{os.pathsep}{SOURCES}"
    result = run(variables, "--data", str(tmp_path / "d"), *python("print('runs')"), PYTHONPATH=path)
    assert result.stdout == "runs\n"
    assert "Error in sitecustomize" in result.stderr
    assert "ValueError: theirs" in result.stderr


def started_from(folder: Path, boot: str) -> Path:
    """A copy of the package with another `boot`, like another environment from which `pyrometer run` is started."""
    package = folder / "elsewhere" / "pyrometer"
    for name in ("__init__.py", "train/__init__.py", "train/site/sitecustomize.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text((SOURCES / "pyrometer" / name).read_text())
    (package / "train" / "run").mkdir()
    (package / "train" / "run" / "__init__.py").touch()
    (package / "train" / "run" / "boot.py").write_text(boot)
    return package


@pytest.mark.parametrize(
    ("boot", "says"),
    [
        ("def start():\n    print('started', flush=True)", "started\n"),
        ("def start():\n    raise RuntimeError('broken')", ""),
        ("this is not Python", ""),
    ],
)
def test_python_without_pyrometer_is_instrumented(variables, tmp_path, boot, says):
    site = started_from(tmp_path, boot) / "train" / "site"
    show = "import sys; print([p for p in sys.path if 'elsewhere' in p])"
    bare = sys._base_executable  # outside of the environment in which this test runs
    result = subprocess.run(
        [bare, "-c", show], env={**variables, "PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{says}[]\n", "")


# -- telemetry --------------------------------------------------------------------------------------------------------

TRAIN = (
    RANK
    + """
spool.put(identity, [("event", {"time_ms": 5, "kind": "checkpoint_saved", "step": 1})])
time.sleep(1.2)
"""
)


def test_run_sends_to_the_server_and_prints_the_show_command(variables, tmp_path):
    collector = Collector()
    result = run(
        variables, "--server", collector.url, *python(TRAIN + "here.view[ring.ENDED] = 1"), PYROMETER_TOKEN="t-1"
    )
    collector.close()
    assert result.returncode == 0
    assert result.stderr == f"pyrometer: `pyrometer show r1 --server {collector.url}` shows what happened.\n"
    assert [plain(record.attributes)["pyrometer.kind"] for _, record in logs(collector.taken)] == ["checkpoint_saved"]
    assert {headers["Authorization"] for _, headers in collector.requests} == {"Bearer t-1"}


@pytest.mark.heavy
def test_killed_rank_ends_with_its_signal(variables, tmp_path):
    collector = Collector()
    result = run(variables, "--server", collector.url, *python(TRAIN + "os.kill(os.getpid(), 9)"))
    collector.close()
    assert result.returncode == 137
    ends = [plain(r.attributes) for _, r in logs(collector.taken) if r.event_name == "pyrometer.run"]
    assert [(end["pyrometer.outcome"], end["pyrometer.reason"]) for end in ends] == [("killed", "SIGKILL")]


def test_run_without_a_server_stores_records_locally(variables, tmp_path):
    result = run(variables, *python(TRAIN), cwd=tmp_path)
    assert result.stderr == (
        "pyrometer: `pyrometer show r1 --data pyrometer-data` shows what happened. "
        "Stored in pyrometer-data, because neither --server nor --data was passed.\n"
    )
    inbox = tmp_path / "pyrometer-data" / "inbox" / "otlp"
    taken = [(f"/v1/{path.name.split('.')[-3]}", path.read_bytes()) for path in sorted(inbox.iterdir())]
    assert [record.event_name for _, record in logs(taken)] == ["pyrometer.event", "pyrometer.window", "pyrometer.run"]


@pytest.mark.heavy
def test_next_run_sends_what_an_unreachable_server_missed(variables, tmp_path):
    collector = Collector()
    url, port = collector.url, int(collector.url.rpartition(":")[2])
    collector.close()
    begun = time.monotonic()
    result = run(variables, "--server", url, *python(TRAIN + "here.view[ring.ENDED] = 1"), PYROMETER_FLUSH_S="0.5")
    assert time.monotonic() - begun < 10
    assert result.returncode == 0
    spool = Spool(spool_folder({**variables, "PYROMETER_ENDPOINT": url}))
    assert result.stderr == (
        f"pyrometer: {url} does not accept telemetry: Connection refused. Unsent files in {spool.folder}: 1. "
        "The next `pyrometer run` with the same destination sends them.\n"
    )
    collector = Collector(port=port)
    run(variables, "--server", url, "--", "true")
    collector.close()
    assert len(logs(collector.taken)) == 1
    assert spool.parts() == spool.bodies() == []


@pytest.mark.heavy
def test_interrupt_skips_waiting_for_an_unreachable_server(variables, tmp_path):
    collector = Collector()
    collector.close()
    process = subprocess.Popen(
        [*RUN, "--no-gpus", "--server", collector.url, *python(TRAIN + "say('over')")],
        env={**variables, "PYROMETER_FLUSH_S": "30"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "over\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "does not accept telemetry" in printed
    assert "Unsent files in" in printed


def test_closed_stderr_keeps_the_exit_code(variables, tmp_path):
    command = [*RUN, "--no-gpus", "--data", str(tmp_path / "d"), "--", "sh", "-c", "exit 6"]
    result = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], env=variables)
    assert result.returncode == 6


@pytest.mark.heavy
def test_run_samples_the_gpus_of_the_host(variables, tmp_path):
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    recorded = Path(__file__).parents[2] / "data" / "h200-smi" / "lines.csv"
    fake.write_text(f"#!/bin/sh\ncat {recorded}\nexec sleep 60\n")
    fake.chmod(0o755)
    collector = Collector()
    environment = {**variables, "PATH": f"{fake.parent}:{variables['PATH']}"}
    environment.pop("KUBERNETES_SERVICE_HOST", None)
    command = [*RUN, "--server", collector.url, "--", "sleep", "0.7"]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    watched = points(collector.taken)
    assert len(watched) == 25 * 6
    assert {name for _, name, _ in watched} >= {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"}
    before = len(collector.taken)
    in_kubernetes = {**environment, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}  # where exporters do that
    subprocess.run(command, env=in_kubernetes, capture_output=True, check=True, timeout=60)
    collector.close()
    assert len(collector.taken) == before
