// Frames: writes them around payloads, finds and checks them in bytes, and copies spans of bytes to other places.
#include "frames.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rm {
namespace {

// Reads bytes [start, start + size) of a file. Returns false if the file ends before, or can't be read.
bool read_fully(int descriptor, int64_t start, int64_t size, uint8_t *out) {
  while (size > 0) {
    const ssize_t count = pread(descriptor, out, static_cast<size_t>(size), static_cast<off_t>(start));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    start += count, size -= count, out += count;
  }
  return true;
}

// Opens a regular file for reading. Does not wait for a pipe, and never reads a device. Returns -1 if that is impossible.
int open_regular(const char *path) {
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat state;
  if (descriptor < 0 || (fstat(descriptor, &state) == 0 && S_ISREG(state.st_mode))) return descriptor;
  close(descriptor);
  return -1;
}

// Reads spans [i, count) of a file to their places. Returns the index of the first span that was not read.
int64_t read_file_spans(int descriptor, int64_t i, int64_t count, IntSpan starts, IntSpan sizes, IntSpan targets,
                        Span<uint8_t> out) {
  // A call costs about as much as copying 4 KiB, so spans with smaller gaps are read together.
  constexpr int64_t CHUNK_BYTES = 64 << 10, MAX_GAP_BYTES = 4 << 10;
  uint8_t chunk[CHUNK_BYTES];
  for (int64_t next; i < count; i = next) {
    const int64_t start = starts[i];
    int64_t end = start + sizes[i];
    for (next = i + 1; next < count; next++) {
      const int64_t next_end = max(end, starts[next] + sizes[next]);
      if (starts[next] < start || starts[next] - end > MAX_GAP_BYTES || next_end - start > CHUNK_BYTES) break;
      end = next_end;
    }
    const bool is_single = next == i + 1;
    if (!read_fully(descriptor, start, end - start, is_single ? out.data + targets[i] : chunk)) return i;
    for (int64_t row = i; row < next && !is_single; row++)
      copy_short(out.data + targets[row], chunk + (starts[row] - start), sizes[row]);
  }
  return count;
}

// Continues a digest with a word. Each step is a bijection, so no change of a single word goes unnoticed.
RM_INLINE uint64_t digest_word(uint64_t digest, uint64_t word) { return half_mixed(digest ^ word * GOLDEN); }

// Walks frames from scan.position on. Stops at the first one that is not GOOD, has its header outside the data, or has no
// room in the output. Moves scan.position and sets scan.code. Returns the number of frames.
//   visit(frame, length, index): is called for each frame with a good header, and returns a FrameCode.
template <typename Visit>
RM_INLINE int64_t walk_frames(ByteSpan data, FrameScan &scan, int64_t room, Visit visit) {
  int64_t position = scan.position, count = 0;
  FrameCode code = FrameCode::GOOD;
  for (; position < scan.end; count++) {
    const uint8_t *const frame = data.data + position;
    const int64_t available = scan.end - position;
    // A header that the file cuts off is inside the data, though 12 bytes of it are not.
    const bool has_header = position <= data.size - HEADER_BYTES || available < HEADER_BYTES;
    code = count < room && has_header ? check_header(frame, available, scan.max_record_bytes, scan.is_final != 0)
                                      : FrameCode::NEEDS_MORE;
    if (code == FrameCode::GOOD) code = visit(frame, load<int64_t>(frame), count);
    if (code != FrameCode::GOOD) break;
    position += load<int64_t>(frame) + FRAME_BYTES;
  }
  scan.position = position, scan.code = code;
  return count;
}

}  // namespace

int64_t rm_frame(ByteSpan data, IntSpan offsets, Span<uint8_t> out, Span<int64_t> starts, Span<int64_t> lengths,
                 Span<uint32_t> crcs) {
  const int64_t count = starts.size;
  if (offsets.size != count + 1 || lengths.size != count || crcs.size != count) return BOUNDS;
  int64_t position = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = offsets[i], length = offsets[i + 1] - start;
    if (!data.holds(start, length) || length > out.size - position - FRAME_BYTES) return BOUNDS;
    copy_short(out.data + position + HEADER_BYTES, data.data + start, length);
    starts[i] = position, lengths[i] = length;
    crcs[i] = put_frame(out.data + position, length);
    position += length + FRAME_BYTES;
  }
  return position;
}

int64_t rm_scan_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<int64_t> lengths,
                       Span<uint32_t> crcs) {
  if (scan.position < 0 || scan.position > data.size) return BOUNDS;
  if (lengths.size != starts.size || crcs.size != starts.size) return BOUNDS;
  scan.end = data.size;
  const auto visit = [&](const uint8_t *frame, int64_t length, int64_t index) {
    const uint8_t *const payload = frame + HEADER_BYTES;
    const uint32_t crc = scan.checks_payloads ? crc32c(0, payload, length) : 0;
    if (scan.checks_payloads && load<uint32_t>(payload + length) != masked(crc)) return FrameCode::BAD_PAYLOAD_CRC;
    starts[index] = frame - data.data, lengths[index] = length, crcs[index] = crc;
    return FrameCode::GOOD;
  };
  const int64_t count = walk_frames(data, scan, starts.size, visit);
  // If the scan is not final, a frame that continues after the data is not a fault. It is scanned with the next data.
  if (scan.code == FrameCode::NEEDS_MORE && count < starts.size) scan.code = FrameCode::GOOD;
  return count;
}

int64_t rm_hop_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<uint64_t> digest) {
  if (scan.position < 0 || scan.position > data.size || scan.end < scan.position || digest.size != 1) return BOUNDS;
  // The footer of a frame is read with the next header, since that is in the data and the end of a payload may not be.
  const auto add_footer_before = [&](int64_t position) {
    if (position >= FOOTER_BYTES && position <= data.size)
      digest[0] = digest_word(digest[0], load<uint32_t>(data.data + position - FOOTER_BYTES));
  };
  const int64_t count = walk_frames(data, scan, starts.size, [&](const uint8_t *frame, int64_t length, int64_t index) {
    starts[index] = frame - data.data;
    add_footer_before(starts[index]);
    digest[0] = digest_word(digest[0], static_cast<uint64_t>(length));
    return FrameCode::GOOD;
  });
  if (scan.position == scan.end) add_footer_before(scan.position);
  return count;
}

int64_t rm_next_frame(ByteSpan data, int64_t position, int64_t max_record_bytes, int64_t is_complete) {
  if (position < 0) return BOUNDS;
  for (; position <= data.size - HEADER_BYTES; position++) {
    const uint8_t *const frame = data.data + position;
    const int64_t length = load<int64_t>(frame);
    // The length is compared first, because it excludes nearly all positions and the CRC costs more.
    if (length < 0 || length > max_record_bytes) continue;
    if (is_complete && length > data.size - position - FRAME_BYTES) continue;
    if (load<uint32_t>(frame + 8) == masked(crc32c(0, frame, 8))) return position;
  }
  return data.size;
}

int64_t rm_copy_spans(Span<const ByteSpan> blocks, Span<const int32_t> block_ids, IntSpan starts, IntSpan sizes,
                      IntSpan targets, Span<uint8_t> out) {
  // Spans are scattered over much memory. The bytes of a later span are prefetched while this one is copied.
  constexpr int64_t AHEAD = 8;  // spans
  constexpr int64_t PREFETCHED_BYTES = 1024, LINE_BYTES = 64;  // of each span; the processor prefetches the rest itself
  const int64_t count = starts.size;
  if (sizes.size != count || targets.size != count) return BOUNDS;
  if (block_ids ? block_ids.size != count : blocks.size != 1) return BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t block = block_ids ? block_ids[i] : 0, size = sizes[i];
    if (!blocks.holds(block) || !out.holds(targets[i], size)) return BOUNDS;
    if (!blocks[block].holds(starts[i], size)) return i;
    const int64_t next = i + AHEAD, next_block = next >= count ? -1 : block_ids ? block_ids[next] : 0;
    if (blocks.holds(next_block)) {
      // As an integer, because the offset is not checked yet. Prefetching an invalid address does nothing.
      const uintptr_t address =
          reinterpret_cast<uintptr_t>(blocks[next_block].data) + static_cast<uintptr_t>(starts[next]);
      for (int64_t line = 0; line < min(sizes[next], PREFETCHED_BYTES); line += LINE_BYTES)
        __builtin_prefetch(reinterpret_cast<const void *>(address + static_cast<uintptr_t>(line)));
    }
    copy_short(out.data + targets[i], blocks[block].data + starts[i], size);
  }
  return count;
}

int64_t rm_read_spans(ByteSpan paths, IntSpan edges, IntSpan starts, IntSpan sizes, IntSpan targets, Span<uint8_t> out) {
  const int64_t count = starts.size, files = edges.size - 1;
  if (sizes.size != count || targets.size != count || files < 0 || edges[0] != 0 || edges[files] != count) return BOUNDS;
  for (int64_t i = 0; i < count; i++)
    if (starts[i] < 0 || sizes[i] > INT64_MAX - starts[i] || !out.holds(targets[i], sizes[i])) return BOUNDS;
  const uint8_t *path = paths.data;
  for (int64_t file = 0; file < files; file++) {
    const int64_t begin = edges[file], end = edges[file + 1];
    const void *const terminator = path ? memchr(path, 0, static_cast<size_t>(paths.end() - path)) : nullptr;
    if (begin > end || end > count || !terminator) return BOUNDS;
    const int descriptor = open_regular(reinterpret_cast<const char *>(path));
    if (descriptor < 0) return begin;
    const int64_t position = read_file_spans(descriptor, begin, end, starts, sizes, targets, out);
    close(descriptor);
    if (position < end) return position;
    path = static_cast<const uint8_t *>(terminator) + 1;
  }
  return count;
}

}  // namespace rm
