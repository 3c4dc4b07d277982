"""On a real GPU: the SDK adds no synchronization, leaves graphs intact, and measures time on the GPU."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)
from torch import nn  # noqa: E402

from tests.support.training_processes import watch_rank  # noqa: E402


def model(width: int = 2048, layers: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).cuda()


def train(net, steps, *, width=2048, batch=4096):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6)
    x = torch.randn(batch, width, device="cuda")
    for _ in range(steps):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def test_sdk_adds_no_synchronization(tmp_path):
    net = model()
    with watch_rank(tmp_path) as watched:
        torch.cuda.set_sync_debug_mode("error")
        try:
            train(net, 400)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        messages = watched.close()
    (window,) = (message for kind, message in messages if kind == "window")
    losses = [message for kind, message in messages if kind == "metric" and message["name"] == "loss"]
    assert watched.rank.identity["gpu_uuid"].startswith("GPU-")
    assert losses
    assert window["forward_ms"] > 0
    assert window["backward_ms"] > window["forward_ms"]
    assert window["memory_peak_mib"] > 0


def test_phase_times_are_gpu_times(tmp_path):
    """The host runs ahead: only the GPU's clock measures that backward takes about twice the time of forward."""
    with watch_rank(tmp_path) as watched:
        train(model(4096, 6), 200, width=4096)
        torch.cuda.synchronize()
        messages = watched.close()
    (window,) = (message for kind, message in messages if kind == "window")
    assert 1.4 < window["backward_ms"] / window["forward_ms"] < 3.0


def test_wait_for_data_is_measured_on_the_gpu(tmp_path):
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            time.sleep(0.03)
            return torch.randn(2048)

    with watch_rank(tmp_path) as watched:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6)
        for x in DataLoader(Slow(), batch_size=1):
            net(x.cuda(non_blocking=True)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        messages = watched.close()
    (window,) = (message for kind, message in messages if kind == "window")
    assert window["data_ms"] > 0.7 * (window["to_ms"] - window["time_ms"])


def test_short_steps_are_sampled(tmp_path):
    with watch_rank(tmp_path) as watched:
        train(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).cuda(), 3000, width=64, batch=256)
        device = watched.rank.recorder.device
        every = device.every
        watched.close()
    assert every > 4  # steps of a millisecond or less


def test_cuda_graphs_are_captured_and_replayed(tmp_path):
    with watch_rank(tmp_path) as watched:
        net = model(256, 2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, capturable=True)
        x = torch.randn(64, 256, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=False)
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        graph.replay()
        first = loss.item()
        for _ in range(50):
            graph.replay()
        assert loss.item() < first
        assert watched.hooks.rank is not None
        watched.close()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_full_graph_compiles(tmp_path, mode):
    with watch_rank(tmp_path) as watched:
        net = torch.compile(model(512, 2), fullgraph=True, mode=mode)
        train(net, 30, width=512, batch=64)
        torch.cuda.synchronize()
        messages = watched.close()
    kinds = {message["kind"] for kind, message in messages if kind == "event"}
    assert "compiled" in kinds
    assert "sdk_error" not in kinds


def test_weights_are_the_same_with_and_without_the_sdk(tmp_path):
    torch.use_deterministic_algorithms(True, warn_only=True)

    def weights(watch):
        torch.manual_seed(3)
        net = model(256, 3)
        if watch:
            with watch_rank(tmp_path):
                train(net, 50, width=256, batch=64)
        else:
            train(net, 50, width=256, batch=64)
        return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

    torch.manual_seed(1)
    bare = weights(False)
    torch.manual_seed(1)
    assert torch.equal(bare, weights(True))
    torch.use_deterministic_algorithms(False)


def test_loss_of_a_step_is_the_sum_of_its_micro_batches(tmp_path):
    net = model(4096, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    x = torch.randn(4096, 4096, device="cuda")
    losses = []
    with watch_rank(tmp_path) as watched:
        for _ in range(30):  # of more than 10 ms each
            step = []
            for _ in range(2):
                loss = net(x).square().mean() / 2
                loss.backward()
                step.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step)
            torch.cuda.synchronize()  # the host is not to run ahead: its clock says how often there may be a copy
        logged = {m["step"]: m["value"] for m in watched.messages("metric") if m["name"] == "loss"}
    expected = {number: sum(part.item() for part in step) for number, step in enumerate(losses)}
    assert len(logged) >= 20
    assert all(value == pytest.approx(expected[number]) for number, value in logged.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_logged_gpu_tensors_arrive_with_their_step(tmp_path, dtype):
    net = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    with watch_rank(tmp_path) as watched:
        torch.cuda.set_sync_debug_mode("error")
        for number in range(40):
            net(torch.ones(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            if number % 10 == 7:
                watched.rank.log({"noted": torch.full((), number, device="cuda", dtype=dtype)}, number, None)
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        logged = [(m["step"], m["value"]) for m in watched.messages("metric") if m["name"] == "noted"]
    assert logged == [(7, 7.0), (17, 17.0), (27, 27.0), (37, 37.0)]


def test_nonfinite_loss_on_a_gpu_is_reported_during_training(tmp_path):
    net = model(4096, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    x = torch.randn(4096, 4096, device="cuda")
    seen_at = []
    with watch_rank(tmp_path) as watched:
        for number in range(40):
            loss = net(x).square().mean() * (float("nan") if number >= 20 else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()  # as a program that prints its loss
            if watched.rank.metrics._finite is False:
                seen_at.append(number)
        logged = [m for m in watched.messages("event") if m["kind"] == "nonfinite_loss"]
    assert [m["step"] for m in logged] == [20]
    assert seen_at[0] <= 22
