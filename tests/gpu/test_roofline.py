"""The expected times in docs/gpu.md, computed: `python tests/gpu/test_roofline.py` writes them there."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "gpu.md"
# Bytes per second, float32 operations per second, float16 operations of tensor cores per second.
DEVICES = {"A100": (2.0e12, 19.5e12, 312e12), "H100": (3.35e12, 67e12, 990e12)}
ENTRIES = 2**26
# Bytes and operations for each entry.
ROWS = {
    "softmax (torch)": (4, 10),
    "entmax 1.5, sparsemax": (4, 60),
    "entmax, other alphas": (4, 300),
    "backward, any alpha": (6, 60),
    "long rows, each pass, alpha 1.5 or 2": (2, 6),
    "long rows, each pass, other alphas": (2, 35),
}
HEAD = 64
PASSES = 6  # of the threshold search
OUTSIDE = 10  # operations outside the tensor cores for each score: masks, powers


def number(milliseconds: float) -> str:
    return f"{milliseconds:.2g}" if milliseconds < 100 else f"{milliseconds:.0f}"


def row_line(name: str) -> str:
    size, operations = ROWS[name]
    times, bounds = [], []
    for bandwidth, plain, _ in DEVICES.values():
        memory, arithmetic = size * ENTRIES / bandwidth, operations * ENTRIES / plain
        times.append(number(1e3 * max(memory, arithmetic)) + " ms")
        bounds.append("memory" if memory >= arithmetic else "arithmetic")
    bound = ", ".join(dict.fromkeys(bounds))
    return f"| {name} | {size} | {operations} | {times[0]} | {times[1]} | {bound} |"


def attention_line(length: int) -> str:
    dense, full, few, sdpa = [], [], [], []
    for _, plain, tensor in DEVICES.values():
        once = length**2 * (2 * HEAD / tensor + OUTSIDE / plain)
        dense.append(number(1e3 * once))
        full.append(number(1e3 * once * (1 + PASSES + 2)))
        few.append(number(1e3 * once * (1 + 0.1 * (PASSES + 2))))
        sdpa.append(number(1e3 * length**2 * 4 * HEAD / (0.6 * tensor)))
    cells = (f"{' / '.join(times)} ms" for times in (dense, full, few, sdpa))
    return f"| {length:,} | {' | '.join(cells)} |"


def lines() -> list[str]:
    found = [row_line(name) for name in ROWS]
    return found + [attention_line(length) for length in (8192, 32_768, 131_072)]


def test_the_documented_times_follow_from_bytes_and_operations() -> None:
    text = DOCUMENT.read_text()
    assert [line for line in lines() if line not in text] == []


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    for line in lines():
        start = line[: line.index("|", 2) + 1]
        old = next((known for known in text.splitlines() if known.startswith(start)), None)
        if old is None:
            raise SystemExit(f"docs/gpu.md has no line for {start}")
        text = text.replace(old, line)
    DOCUMENT.write_text(text)
