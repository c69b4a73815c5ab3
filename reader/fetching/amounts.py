"""How many bytes are read ahead and mixed, where a call does not say."""

WINDOW_BYTES = 64 << 20  # 64 MiB: hundreds of thousands of small records are mixed, and a disk still reads stretches
MEMORY_BYTES = 512 << 20  # 512 MiB under way: what four threads have, at most, of stretches and compressed windows
