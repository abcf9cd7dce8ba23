"""Each rank computes on a device of its own, and what ranks exchange stays there: by NCCL between GPUs."""

import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import FileStore

from decoding.errors import LaneDiedError, LaneError, ModelError
from decoding.schedule import Schedule
from runtime.backends.eager import EagerBackend
from runtime.drafters.parallel_track import load_parallel_track
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory.needs import PROCESS_BYTES, draft_size, on_ranks
from runtime.models.config import ModelConfig
from runtime.parallel import local_group
from runtime.parallel.group import Group
from runtime.parallel.sharded_decoder import Share, load_sharded_decoder, run_of
from tests.runtime.drafters.test_parallel_track import save
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_config, tiny_target


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


def test_a_gpu_that_a_rank_cannot_use_is_told_by_every_rank(monkeypatch, tmp_path):
    def refuse(_):
        raise RuntimeError("CUDA error: invalid device ordinal\nGPU kernel errors might be reported later")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    store, failed = (
        FileStore(str(tmp_path / "store")),
        "it cannot compute on cuda:1: CUDA error: invalid device ordinal",
    )
    with pytest.raises(LaneError, match=f"^rank 1 of 2 failed: {failed}$"):
        Group(1, 2, store, device="cuda:1")
    with pytest.raises(LaneDiedError, match=f"group of 2 ranks could not form: rank 1 failed: {failed}$"):
        Group(0, 2, store, device="cpu")


@pytest.mark.parametrize(("device", "own"), [("cuda:2", "cuda:3"), ("cpu", "cpu")])
def test_a_rank_has_the_device_that_follows_as_many_after_the_first(device, own, monkeypatch):
    found = []
    monkeypatch.setattr(local_group, "open_store", lambda *_: None)
    monkeypatch.setattr(local_group, "serve_rank", lambda *_, device: found.append(device.own_name))
    local_group.follow(1, 8, device=device, port=1)
    assert found == [own]


def test_ranks_listen_on_the_loopback_interface_alone_whatever_they_exchange_by(monkeypatch):
    names, found = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), []
    for name in names:
        monkeypatch.setenv(name, "")  # as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(local_group, "serve_rank", lambda *_, **__: found.extend(os.environ[name] for name in names))
    local_group.lead(None, 1, device="cpu", cores=(), num_threads=1)
    [interface] = set(found)
    assert interface.startswith("lo")


def test_a_share_is_loaded_where_its_rank_computes(tmp_path):
    folder = save_target(tiny_target(), tmp_path / "target")
    group = SimpleNamespace(rank=0, world_size=2, device="meta")
    decoder = load_sharded_decoder(folder, group, dtype=torch.float32)
    assert {weight.device.type for weight in decoder.parameters()} == {"meta"}
    assert {table.device.type for table in decoder.rotary.buffers()} == {"meta"}


def test_a_gpu_that_computes_eagerly_is_waited_for_where_its_work_is_timed(monkeypatch):
    waited, backend = [], EagerBackend(tiny_target())
    stream = SimpleNamespace(synchronize=lambda: waited.append(backend.device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    backend.wait()
    assert waited == []
    backend.device = torch.device("cuda:1")
    backend.wait()
    assert waited == [backend.device]


def shares(config, world_size):
    return [Share.of(config, rank, world_size) for rank in range(world_size)]


@given(whole=st.integers(0, 200), world_size=st.integers(1, 20))
def test_runs_follow_each_other_and_differ_by_one_at_most(whole, world_size):
    runs = [run_of(whole, rank, world_size) for rank in range(world_size)]
    assert [index for run in runs for index in run] == list(range(whole))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


@given(num_kv=st.integers(1, 8), group=st.integers(1, 8), world_size=st.integers(1, 16))
def test_every_query_head_is_on_one_rank_next_to_the_keys_it_reads(num_kv, group, world_size):
    config = tiny_config(num_heads=num_kv * group, num_kv_heads=num_kv)
    can_be_split = world_size <= num_kv or (world_size % num_kv == 0 and world_size <= num_kv * group)
    if not can_be_split:
        with pytest.raises(ModelError, match=f"split over {world_size} ranks"):
            shares(config, world_size)
        return
    dealt = shares(config, world_size)
    assert [head for share in dealt for head in share.heads] == list(range(config.num_heads))
    if world_size <= num_kv:
        assert [head for share in dealt for head in share.kv_heads] == list(range(num_kv))
    for share in dealt:
        own = share.of_config(config)
        for place, head in enumerate(share.heads):
            # as attention pairs them: equal groups of neighbours
            assert share.kv_heads[place // own.num_queries_per_kv] == head // group


@pytest.mark.parametrize(
    ("changes", "world_size", "named"),
    [
        ({"num_heads": 4, "num_kv_heads": 4}, 5, "num_heads 4"),
        ({"intermediate_size": 3}, 4, "intermediate_size 3"),
        ({"num_heads": 6, "num_kv_heads": 3}, 4, "num_kv_heads 3"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(changes, world_size, named):
    with pytest.raises(ModelError, match=named):
        Share.of(tiny_config(**changes), 0, world_size)


PLAIN = Schedule(method="autoregressive", target_lane="big-2ranks")


def test_each_rank_has_a_process_and_an_embedding(tiny_folders):
    engine = Engine(tiny_folders.target, lanes=[LaneSpec(name="big-2ranks"), LaneSpec(name="big")], dtype="float32")
    two = engine.memory_needed(PLAIN, 20)["big-2ranks"]
    one = engine.memory_needed(PLAIN.model_copy(update={"target_lane": "big"}), 20)["big"]
    embedding = tiny_folders.decoder.embedding.weight.nbytes
    assert (two.weights - one.weights, two.process) == (embedding, 2 * PROCESS_BYTES)
    assert two.keys_values == one.keys_values
    assert on_ranks(one, 1, engine.config, "float32") == one


def test_tracks_are_counted_to_the_byte(tiny_folders, tmp_path):
    folder, target = save(tmp_path / "draft", num_tracks=4), ModelConfig.from_folder(tiny_folders.target)
    drafter = load_parallel_track(folder, tiny_folders.target, dtype=torch.float32, group=Group.alone())
    decoder = drafter.model.decoder
    held = sum(tensor.nbytes for tensor in [*decoder.parameters(), *decoder.buffers()])
    size = draft_size(folder, target, "float32", shares_lane=False)
    assert size.weights == held
    assert (size.layers.num_layers, size.layers.num_kv_heads) == (16, 2)
