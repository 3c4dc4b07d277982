"""Every command in README.md and docs/ runs, or is in a table here with the reason why it does not.

A block is run from top to bottom in a folder of its own, which has a data folder, logs of speed runs and a training
program. A walkthrough page runs from its first block to its last, in an empty folder.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import httpx2 as httpx
import pytest
import yaml
from written import LANGUAGES, PAGES, REPOSITORY, Block, Command, all_blocks, inline

from pyrometer.cli import COMMANDS, main
from pyrometer.cli.commands.run import _planned
from pyrometer.identify.gpus.price_book import read_price_book
from pyrometer.identify.kubernetes.workload_kinds import known_kinds
from pyrometer.model.settings import Settings, with_values
from pyrometer.questions.tokens import Tokens
from pyrometer.store import Store
from tests.support import clusters, sweep_runs
from tests.support.kube_server import free_port
from tests.support.server_process import serving
from tests.support.traced_run import RUN, START_MS, TrainingRecords
from tests.support.webhook_receiver import receiving

COPIES = ("docs/reference/commands.md",)  # its examples are those of the other pages
BLOCKS = {block.place: block for block in all_blocks() if block.page not in COPIES}
# Walkthrough pages, which run from their first block to their last, and texts that their commands print.
STORIES = {
    "docs/first-ten-minutes.md": {
        "pyrometer why --data runs --price 2": "slow waited for rank 1 ",
        "pyrometer trace slow --step 64 --data runs": "▶ rank 1 ",
    },
    "docs/kubeflow.md": {"pyrometer show lr-search --data night": " won and cost "},
}

# Commands that do not run here, and why. What they give to Pyrometer and to make is still read as they would read it.
CLUSTER = "needs a cluster: tests/kube runs it against a real API server"
PROMETHEUS = "needs a Prometheus with a past: tests/prometheus runs it against a real one"
NODE = "needs a GPU's driver, and does not end: tests/agent/test_server.py runs it"
INSTALLS = "installs: benchmarks/newcomer.py does"
TRACKER = (
    "needs a tracker: tests/torch/test_both_worlds.py and tests/cli/commands/test_export.py run it against real ones"
)
BUCKET = "needs a bucket or a Ray cluster: tests/store/engines/test_ray.py reads real ones"
NOT_RUN = {
    "pyrometer cost --lake s3://gpu-ledger/prod --by cluster,team --month 2026-10": BUCKET,
    "pyrometer export focus --lake s3://gpu-ledger/prod --month 2026-10 --out october.parquet": BUCKET,
    "pyrometer why --lake s3://gpu-ledger/prod --cluster east": BUCKET,
    "pip install 'pyrometer[ray]'": INSTALLS,
    "pyrometer cost --lake s3://gpu-ledger/prod --by workload --month 2026-10 --engine ray --address auto": BUCKET,
    "pyrometer cost --lake /mnt/lake --by workload --month 2026-10 --engine ray --address ray://head:10001": BUCKET,
    "make demo": "takes a quarter of a minute: the gate runs it",
    "pyrometer demo": "the same, and on a terminal it serves until Ctrl-C: tests/cli/commands/test_demo.py runs it",
    "make test": "these are the tests",
    "python benchmarks/faults.py --every 1 --random 50 --json faults.json": "takes minutes: see tests/faults",
    "python benchmarks/soak.py --json soak.json": "takes minutes: see tests/faults",
    "pyrometer doctor": CLUSTER,
    "pyrometer serve --kube --data ./pyrometer": CLUSTER,
    "pyrometer why --prometheus http://prometheus.example.com:9090": PROMETHEUS,
    "pyrometer why --prometheus http://prometheus.example.com:9090 --last 12h": PROMETHEUS,
    "pyrometer why --prometheus http://127.0.0.1:9090 --kube --last 12h": PROMETHEUS,
    "pyrometer serve --kube --prometheus http://prometheus.example.com:9090 --data ./pyrometer": PROMETHEUS,
    "pyrometer agent": NODE,
    "pyrometer agent --listen 0.0.0.0:9400 --every 5s": NODE,
    "pip install 'pyrometer[agent]'": INSTALLS,
    "pip install pyrometer": INSTALLS,
    "pip install 'pyrometer[notebook]'": "installs: make test-all has the same, and runs the notebook",
    "python3 -m venv venv": INSTALLS,
    ". venv/bin/activate": INSTALLS,
    "pip install 'pyrometer[server]' torch==2.13.0": INSTALLS,
    "podman build -f deploy/Containerfile -t registry.example.com/pyrometer:0.1.0 .": "needs podman and its registries",
    "make manifests IMAGE=registry.example.com/pyrometer:0.1.0 | kubectl apply -f -": CLUSTER,
    "make manifests DEPLOY=deploy/overlays/agent IMAGE=registry.example.com/pyrometer:0.1.0 | kubectl apply -f -": (
        CLUSTER
    ),
    "kubectl -n pyrometer exec pyrometer-0 -- /opt/pyrometer/bin/pyrometer why --data /data": CLUSTER,
    "kubectl -n pyrometer exec pyrometer-0 -- /opt/pyrometer/bin/pyrometer token create me --role viewer "
    "--data /data": CLUSTER,
    "kubectl -n pyrometer exec pyrometer-0 -- /opt/pyrometer/bin/pyrometer doctor": CLUSTER,
    "kubectl create clusterrole pyrometer-own-kinds --verb=get,list,watch --resource=sweeps.example.com": CLUSTER,
    "kubectl create clusterrolebinding pyrometer-own-kinds --clusterrole=pyrometer-own-kinds "
    "--serviceaccount=pyrometer:pyrometer": CLUSTER,
    "kubectl -n pyrometer rollout restart statefulset pyrometer": CLUSTER,
    "pyrometer close 2026-10 --data DIR": "another month than the folder's: tests/docs/test_chargeback.py closes one",
    "pyrometer rebuild --month 2026-10 --data DIR": "likewise: tests/docs/test_chargeback.py rebuilds one",
    "pyrometer export mlflow --tracking-uri http://mlflow:5000 --data DIR": TRACKER,
    "pyrometer export wandb --data DIR": TRACKER,
    "pyrometer export wandb --wandb-dir ./wandb --data DIR": TRACKER,
    "pyrometer import mlflow http://mlflow:5000 --out DIR": TRACKER,
    "pyrometer import wandb ./wandb --out DIR": TRACKER,
    "oauth2-proxy --upstream=http://pyrometer:8411 --provider=oidc --oidc-issuer-url=https://login.example.com "
    "--email-domain=example.com --pass-user-headers=true --reverse-proxy=true": "needs a provider to sign in with",
    "install -m 600 /dev/stdin /etc/pyrometer/webhook-url <<< 'https://hooks.slack.com/services/…'": "writes to /etc",
}

# Examples that other tests follow to the last figure, by the page whose consoles they are.
EXACT = {"docs/chargeback.md": "tests/docs/test_chargeback.py"}

# What stands for something of the reader's own, and what is there instead.
STANDS_FOR = {
    "DIR": "data",
    "/data": "data",
    "/srv/pyrometer": "data",
    "/srv/reports/night.html": "night.html",
    "LOGS": "logs",
    "EXPERIMENT": "lr-sweep",
    "RUN": RUN,
    "two-ranks": RUN,
    "bad-row": RUN,
    "pytorchjob-llama-70b-sft": RUN,
    "--nproc-per-node 8": "--nproc-per-node 2",
    "pyr_…": "$TOKEN",
    "http://127.0.0.1:8411": "$SERVER",
    "http://pyrometer.example.com:8411": "$SERVER",
    "https://pyrometer.example.com": "$SERVER",
}

# Blocks of YAML by what reads them; all others are settings.
PRICES = "price book"
KINDS = "kinds of jobs"
YAML = {
    "docs/concepts.md: - {kind: Sweep, group: example.com, gang: spec.workers, rank: label:sweep-index}": KINDS,
    "docs/prices.md: prices:": PRICES,
    "docs/chargeback.md: prices:": PRICES,
    "docs/trackers.md: env:": "a pod's template",
    "docs/grafana.md: # prometheus.yml": "Prometheus",
    "docs/prometheus.md: # prometheus.yml": "Prometheus",
    "docs/prometheus.md: spec:": "the Prometheus operator",
    "docs/opentelemetry.md: receivers:": "OpenTelemetry's Collector",
    "docs/notifications.md: route:": "Alertmanager",
    "docs/notifications.md: resources: [../../base]": "kustomize",
}

TRAIN = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(512, 8))
model = torch.nn.Linear(8, 1)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (batch,) in DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
SPEEDRUN = """\
Running pytorch 2.4.1+cu121 compiled for CUDA 12.1
nvidia-smi:
Thu Oct 10 23:58:24 2024
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:60:00.0 Off |                    0 |
====================================================================================================
step:0/3 val_loss:10.9000 train_time:285ms step_avg:nanms
step:1/3 train_loss:6.1000 train_time:20000ms step_avg:nanms
step:2/3 train_loss:4.1000 train_time:40000ms step_avg:nanms
step:3/3 train_loss:3.3000 train_time:60000ms step_avg:nanms
step:3/3 val_loss:3.2700 train_time:60000ms step_avg:nanms
"""


# -- blocks on pages --------------------------------------------------------------------------------------------------


def test_every_code_block_names_its_language():
    unknown = [
        f"{place}: {block.language or 'nothing'}" for place, block in BLOCKS.items() if block.language not in LANGUAGES
    ]
    assert not unknown, f"say after the three ticks what it is, one of {', '.join(LANGUAGES)}"


def commands() -> Iterator[tuple[Block, Command]]:
    for block in BLOCKS.values():
        for command in block.commands():
            yield block, command


def declared(command: Command) -> bool:
    return one_line(command.text) in NOT_RUN


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_every_excluded_command_is_on_a_page():
    assert set(NOT_RUN) - {one_line(command.text) for _, command in commands()} == set()


@pytest.mark.parametrize("text", NOT_RUN)
def test_excluded_commands_parse(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()
    for piece in text.split(" | "):
        words = shlex.split(piece)
        if words[0] == "make":
            subprocess.run(["make", "--dry-run", *words[1:]], cwd=REPOSITORY, check=True, capture_output=True)
        if words[0] == "kubectl" and "--" in words:
            words = words[words.index("--") + 1 :]
        if Path(words[0]).name == "pyrometer":
            parsed(words[1:])


def parsed(words: list[str]) -> None:
    """Parses a command line. An unknown option or an invalid value is an error."""
    name, *arguments = words
    command = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[name].module}").command
    if not COMMANDS[name].extra:
        assert _planned(arguments)
        return
    if isinstance(command, click.Group):
        name, *arguments = arguments
        command = command.commands[name]
    assert command.make_context(name, arguments)


def options_of(words: list[str]) -> set[str]:
    """The options that a command takes."""
    module = importlib.import_module(f"pyrometer.cli.commands.{COMMANDS[words[0]].module}")
    if not COMMANDS[words[0]].extra:
        return {option for action in module.parser()._actions for option in action.option_strings}
    command = module.command
    if isinstance(command, click.Group) and len(words) > 1:
        command = command.commands[words[1]]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_inline_commands_have_valid_options(page):
    for text in inline(page):
        words = text.partition(" -- ")[0].split()[1:]
        assert words[0] in COMMANDS, text
        named = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert named <= options_of(words), text


# -- settings, other files, programs ----------------------------------------------------------------------------------


def of(language: str) -> list[str]:
    return [place for place, block in BLOCKS.items() if block.language == language]


def reader_of(block: Block) -> str:
    return YAML.get(f"{block.page}: {block.text.splitlines()[0]}", "settings")


def test_yaml_readers_name_existing_blocks():
    assert set(YAML) <= {f"{block.page}: {block.text.splitlines()[0]}" for block in BLOCKS.values()}


@pytest.mark.parametrize("place", of("yaml"))
def test_yaml_blocks_are_accepted_by_their_reader(place, tmp_path):
    block, path = BLOCKS[place], tmp_path / "it.yaml"
    path.write_text(block.text)
    match reader_of(block):
        case "settings":
            assert with_values(Settings(), yaml.safe_load(block.text), place)
        case "price book":
            assert read_price_book(path)
        case "kinds of jobs":
            assert len(known_kinds(str(path)).by_owner) > len(known_kinds().by_owner)
        case _:
            assert yaml.safe_load(block.text)


@pytest.mark.parametrize("place", of("python"))
def test_python_blocks_compile(place):
    assert ast.parse(BLOCKS[place].text).body


# -- commands on a data folder ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with everything that commands need. Blocks get copies, so it does not change."""
    home = tmp_path_factory.mktemp("home")
    later_ms = clusters.START_MS - START_MS
    with Store(home / "data", create=True) as store:
        store.append(clusters.shifted(TrainingRecords(trace_every=8).records, later_ms))
        store.append(clusters.cluster(nodes=1))
        for number, losses in enumerate(([3.9, 3.4, 3.1], [3.9, 3.6, 3.3])):
            store.append(
                sweep_runs.run_records(f"lr-{number}", number, 30 + 30 * number, losses, experiment="lr-sweep")
            )
    (home / "logs").mkdir()
    (home / "logs" / "2024-10-10_Muon.log").write_text(SPEEDRUN)
    (home / "train.py").write_text(TRAIN)
    (home / "bill.csv").write_text(next(block.text for block in BLOCKS.values() if block.language == "csv"))
    return home


@pytest.fixture
def here(home, tmp_path, monkeypatch) -> Path:
    """A copy of the folder, as the working directory of the test."""
    for name in os.environ:
        if name.startswith("PYROMETER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYROMETER_DATA", "data")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.chdir(shutil.copytree(home, tmp_path / "here"))
    return tmp_path / "here"


def substituted(text: str) -> str:
    """The command that is run instead. Only whole words are replaced."""
    for word, instead in STANDS_FOR.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(word)}(?![\w-]|\.\w)", instead, text)
    return text


def needs_more(command: Command) -> bool:
    """Whether a command needs another process: a server, a training program, a shell."""
    words = shlex.split(command.text, comments=False)
    return words[0] != "pyrometer" or words[1] in ("run", "serve", "demo") or bool({"--server", "|"} & set(words))


def as_shown(printed: tuple[str, ...], out: str) -> None:
    """Checks that output begins like the page, up to the first figure, which differs between runs."""
    if printed:
        assert opening((out.splitlines() or [""])[0]) == opening(os.path.expandvars(substituted(printed[0])))


def opening(line: str) -> str:
    return re.split(r"[\d$]", re.sub(r"^(Mon|Tue|Wed|Thu|Fri|Sat|Sun) ", "Day ", line))[0]


def places(*, heavy: bool) -> list[str]:
    """Blocks with something to run, alone or with other processes."""
    return [
        place
        for place, block in BLOCKS.items()
        if block.page not in STORIES
        and not is_exact(block)
        and (left := [command for command in block.commands() if not declared(command)])
        and any(map(needs_more, left)) is heavy
        and not any(set(left) < set(other.commands()) for other in BLOCKS.values() if other is not block)
    ]


def is_exact(block: Block) -> bool:
    return block.page in EXACT and block.language == "console"


def test_every_command_is_run_or_has_a_reason():
    run = [BLOCKS[place] for place in (*places(heavy=False), *places(heavy=True))]
    run += [block for block in BLOCKS.values() if block.page in STORIES or is_exact(block)]
    assert all((REPOSITORY / test).exists() for test in EXACT.values())
    tried = {one_line(command.text) for block in run for command in block.commands()}
    assert {one_line(command.text) for _, command in commands()} - tried - set(NOT_RUN) == set()


@pytest.mark.parametrize("place", places(heavy=False))
def test_commands_on_a_data_folder_run(place, here, capsys):
    with receiving() as receiver:
        (here / "url").write_text(receiver.url)
        (here / "data" / "settings.yaml").write_text("webhook_url_file: url\n")
        for command in BLOCKS[place].commands():
            if declared(command):
                continue
            typed, _, file = substituted(command.text).partition(" > ")
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(typed)[1:])
            result = capsys.readouterr()
            assert (ended.value.code, result.err) == (0, ""), command
            if file:
                (here / file).write_text(result.out)
            as_shown(command.printed, result.out)


@contextmanager
def listening(text: str, here: Path) -> Iterator[None]:
    """Runs a command that serves until it is stopped. Yields when it listens."""
    address = f"127.0.0.1:{free_port()}"
    words = [*shlex.split(text), "--listen", address]
    process = subprocess.Popen(words, cwd=here, stderr=subprocess.PIPE, text=True)
    with process.stderr:
        assert any("Listening" in line for line in process.stderr), text
        assert httpx.get(f"http://{address}/").status_code == 200
        yield
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(timeout=30) == 0


def typed(text: str, here: Path) -> str:
    """The output of a command in a shell. It must succeed."""
    result = subprocess.run(["bash", "-c", text], cwd=here, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, (text, result.stdout, result.stderr)
    return result.stdout


@pytest.mark.heavy
@pytest.mark.parametrize("place", places(heavy=True))
def test_commands_with_servers_and_training_run(place, here, monkeypatch):
    block = BLOCKS[place]
    if "TOKEN" in block.text:
        monkeypatch.setenv("TOKEN", Tokens(here / "data").create("reader", "viewer", START_MS, None))
    with ExitStack() as stack:
        if "--server" in block.text or "curl" in block.text:
            client = stack.enter_context(serving(here / "data"))
            monkeypatch.setenv("SERVER", str(client.base_url).rstrip("/"))
        for command in block.commands():
            if declared(command):
                continue
            if command.text.startswith("pyrometer serve"):
                stack.enter_context(listening(substituted(command.text), here))
            elif command.text.startswith("curl"):
                typed(substituted(command.text).replace("'", '"').replace("curl", "curl -fsS", 1), here)
            else:
                as_shown(command.printed, typed(substituted(command.text), here))


@pytest.mark.heavy
@pytest.mark.parametrize("page", STORIES)
def test_walkthrough_runs_to_its_end(page, here, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    printed = {}
    for block in (block for block in BLOCKS.values() if block.page == page):
        if block.title:
            (folder / block.title).write_text(block.text)
        for command in block.commands():
            if declared(command):
                continue
            if command.text.startswith("pyrometer serve"):
                with listening(command.text, folder):
                    continue
            printed[command.text] = typed(command.text, folder)
            as_shown(command.printed, printed[command.text])
    for text, words in STORIES[page].items():
        assert printed[text].count(words) == 1


# -- explicit use of the SDK -----------------------------------------------------------------------------------------

# What programs on pages leave out.
LEFT_OUT = {"docs/training.md": {"loss": 2.0, "n": 512, "r": 0.5}}


@pytest.mark.parametrize("place", [place for place in of("python") if BLOCKS[place].page in LEFT_OUT])
def test_programs_with_the_sdk_run(place, here):
    block = BLOCKS[place]
    given = "".join(f"{name} = {value!r}\n" for name, value in LEFT_OUT[block.page].items())
    result = subprocess.run([sys.executable, "-c", given + block.text], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
