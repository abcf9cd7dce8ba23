"""Each rank computes on a device of its own, and what ranks exchange stays there: by NCCL between GPUs."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import FileStore

from decoding.errors import LaneError
from runtime.parallel import local_group
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import load_sharded_decoder
from runtime.wire.operations import LoadTarget
from runtime.worker.torch_models import TorchModels
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target


@pytest.fixture
def calls(monkeypatch):
    """What is asked of a stand-in for torch's process groups."""
    made = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append(("set_device", device)))
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, **options: made.append((backend, options["device_id"]))
    )
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(("control", options["backend"])))
    monkeypatch.setattr(dist, "all_reduce", lambda x: made.append(("all_reduce", x.device)))
    monkeypatch.setattr(
        dist, "all_gather", lambda parts, x: made.append(("all_gather", *(y.device for y in (*parts, x))))
    )
    return made


@pytest.mark.parametrize(
    ("device", "joined"),
    [
        ("cuda:1", [("set_device", torch.device("cuda:1")), ("nccl", torch.device("cuda:1")), ("control", "gloo")]),
        ("cpu", [("gloo", None), ("control", "gloo")]),
    ],
)
def test_gpus_exchange_by_nccl_and_cores_by_gloo_where_tensors_are(device, joined, calls, tmp_path):
    store, elsewhere = FileStore(str(tmp_path / "store")), torch.device("meta")
    store.set("joined/0", "")
    group = Group(1, 2, store, device=device)
    assert calls == joined
    x = torch.empty(2, 3, device=elsewhere)
    assert group.sum(x).device == elsewhere
    assert [part.device for part in group.gather(x)] == [elsewhere] * 2
    assert calls[len(joined) :] == [("all_reduce", elsewhere), ("all_gather", *[elsewhere] * 3)]


@pytest.mark.parametrize(("device", "own"), [("cuda:2", "cuda:3"), ("cpu", "cpu")])
def test_a_rank_has_the_device_that_follows_as_many_after_the_first(device, own, monkeypatch):
    found = []
    monkeypatch.setattr(local_group, "open_store", lambda *_: None)
    monkeypatch.setattr(local_group, "serve_rank", lambda *_, device: found.append(device.own_name))
    local_group.follow(1, 8, device=device, port=1)
    assert found == [own]


def test_a_share_is_loaded_where_its_rank_computes(tmp_path):
    folder = save_target(tiny_target(), tmp_path / "target")
    group = SimpleNamespace(rank=0, world_size=2, device="meta")
    decoder = load_sharded_decoder(folder, group, dtype=torch.float32)
    assert {weight.device.type for weight in decoder.parameters()} == {"meta"}
    assert {table.device.type for table in decoder.rotary.buffers()} == {"meta"}


@pytest.mark.parametrize(("own", "asked"), [("cpu", "cuda:0"), ("cuda:1", "cpu"), ("cpu", "openvino:CPU")])
def test_ranks_are_not_asked_to_compute_on_what_is_not_theirs(own, asked, tmp_path):
    models = TorchModels(SimpleNamespace(rank=1, world_size=2, device=own), 1)
    with pytest.raises(LaneError, match=f"computed by torch on their {own[:3]}.*, not by {asked}"):
        models.load_target(LoadTarget(target=tmp_path, exits=None, dtype="float32", device=asked))
