"""Test weights as read from the file, and the errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.model import read
from tests.launchers.embedded import tiny

LINEAR = "model.layers.1.mlp.down_proj.weight"


def test_both_types_are_read_as_they_are(tmp_path: Path) -> None:
    exact = {
        "a": np.array([[1.5, -2.25], [0.0, 3.0e-5]], dtype=np.float32),
        "b": np.ones(3, dtype=np.float32),
    }
    tiny.write_safetensors(tmp_path / "model.safetensors", exact)
    found = read(tmp_path)
    assert all(np.array_equal(found[name], exact[name]) for name in exact)
    tiny.write_safetensors(tmp_path / "model.safetensors", exact, "BF16")
    found = read(tmp_path)
    assert found["a"].dtype == np.float32
    assert found["a"] == pytest.approx(exact["a"], rel=2**-7)
    assert np.array_equal(found["b"], exact["b"])


def test_another_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tiny.write_safetensors(path, {"a": np.ones(2, dtype=np.float32)})
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"F64"'))
    with pytest.raises(ValueError, match="a is F64; only BF16 and F32 are supported"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("damage", "levels", "group"),
    [("int8", 255, 64), ("int4", 15, 64), ("int4-g32", 15, 32), ("int3", 7, 64)],
)
def test_damage_leaves_so_many_evenly_spaced_values_per_row_or_group(
    tmp_path: Path, damage: Damage, levels: int, group: int
) -> None:
    weight = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    weight[3] = 0
    tiny.write_safetensors(
        tmp_path / "model.safetensors", {LINEAR: weight, "model.embed_tokens.weight": weight}
    )
    found = read(tmp_path, damage)
    assert np.array_equal(found["model.embed_tokens.weight"], weight)
    for before, after in zip(
        weight.reshape(-1, group), found[LINEAR].reshape(-1, group), strict=True
    ):
        scale = np.abs(before).max() / (levels // 2)
        assert len(np.unique(after)) <= levels
        assert np.abs(after - before).max() <= scale / 2 * 1.001
        if scale:
            assert after / scale == pytest.approx(np.rint(after / scale), abs=1e-3)
            assert np.abs(after).max() == pytest.approx(np.abs(before).max())
    assert not found[LINEAR][3].any()


def test_fewer_bits_do_more_damage(folder: Path) -> None:
    whole = read(folder)[LINEAR]
    kinds: list[Damage] = ["none", "int8", "int4", "int3"]
    errors = [float(np.square(read(folder, kind)[LINEAR] - whole).mean()) for kind in kinds]
    assert errors[0] == 0
    assert errors == sorted(errors)
    assert errors[3] > 4 * errors[2] > 100 * errors[1]
