// Payloads to frames, bytes to checked frames, spans to other places, and where the records of a file are.
#include "frames.h"

namespace rm {
namespace {

RM_INLINE uint64_t digest_word(uint64_t digest, uint64_t word) { return half_mixed(digest ^ word * GOLDEN); }

// Calls visit(frame, length, number) for the frames from scan.at on, up to the first that is not GOOD, or whose header is
// not in the data, or that is one too many; gives how many there are, and moves scan.at.
template <typename Visit>
RM_INLINE int64_t walk_frames(ByteSpan data, FrameScan &scan, int64_t room, Visit visit) {
  int64_t at = scan.at, count = 0;
  int code = GOOD;
  for (; at < scan.end; count++) {
    const uint8_t *const frame = data.data + at;
    const int64_t left = scan.end - at;
    const bool is_here = count < room && (at <= data.size - HEADER_BYTES || left < HEADER_BYTES);
    code = is_here ? frame_fault(frame, left, scan.max_record_bytes, scan.final != 0) : MORE;
    if (code == GOOD) code = visit(frame, load<int64_t>(frame), count);
    if (code != GOOD) break;
    at += load<int64_t>(frame) + FRAME_BYTES;
  }
  scan.at = at, scan.code = code;
  return count;
}

}  // namespace

int64_t rm_frame(ByteSpan data, IntSpan offsets, Span<uint8_t> out, Span<int64_t> starts, Span<int64_t> lengths,
                 Span<uint32_t> crcs) {
  const int64_t count = starts.size;
  if (offsets.size != count + 1 || lengths.size != count || crcs.size != count) return BOUNDS;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t start = offsets[i], length = offsets[i + 1] - start;
    if (!data.holds(start, length) || length > out.size - at - FRAME_BYTES) return BOUNDS;
    copy_short(out.data + at + HEADER_BYTES, data.data + start, length);
    starts[i] = at, lengths[i] = length;
    crcs[i] = put_frame(out.data + at, length);
    at += length + FRAME_BYTES;
  }
  return at;
}

int64_t rm_scan_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<int64_t> lengths,
                       Span<uint32_t> crcs) {
  if (scan.at < 0 || scan.at > data.size || lengths.size != starts.size || crcs.size != starts.size) return BOUNDS;
  scan.end = data.size;
  const auto visit = [&](const uint8_t *frame, int64_t length, int64_t count) {
    const uint32_t crc = scan.check ? crc32c(0, frame + HEADER_BYTES, length) : 0;
    if (scan.check && load<uint32_t>(frame + HEADER_BYTES + length) != masked(crc)) return PAYLOAD_CRC;
    starts[count] = frame - data.data, lengths[count] = length, crcs[count] = crc;
    return GOOD;
  };
  const int64_t count = walk_frames(data, scan, starts.size, visit);
  // a frame that is cut off is no fault of a scan that isn't final
  if (scan.code == MORE && count < starts.size) scan.code = GOOD;
  return count;
}

int64_t rm_hop_frames(ByteSpan data, FrameScan &scan, Span<int64_t> starts, Span<uint64_t> digest) {
  if (scan.at < 0 || scan.at > data.size || scan.end < scan.at || digest.size != 1) return BOUNDS;
  const auto add_footer = [&](int64_t end) {
    if (end >= FOOTER_BYTES && end <= data.size)
      digest[0] = digest_word(digest[0], load<uint32_t>(data.data + end - FOOTER_BYTES));
  };
  const int64_t count = walk_frames(data, scan, starts.size, [&](const uint8_t *frame, int64_t length, int64_t number) {
    starts[number] = frame - data.data;
    add_footer(starts[number]);
    digest[0] = digest_word(digest[0], static_cast<uint64_t>(length));
    return GOOD;
  });
  if (scan.at == scan.end) add_footer(scan.at);
  return count;
}

int64_t rm_next_frame(ByteSpan data, int64_t at, int64_t max_record_bytes, int64_t whole) {
  if (at < 0) return BOUNDS;
  for (; at <= data.size - HEADER_BYTES; at++) {
    const int64_t length = load<int64_t>(data.data + at);
    if (length < 0 || length > max_record_bytes || (whole && length > data.size - at - FRAME_BYTES)) continue;
    if (load<uint32_t>(data.data + at + 8) == masked(crc32c(0, data.data + at, 8))) return at;
  }
  return data.size;
}

int64_t rm_copy_spans(Span<const ByteSpan> blocks, Span<const int32_t> which, IntSpan starts, IntSpan sizes,
                      IntSpan targets, Span<uint8_t> out) {
  constexpr int64_t AHEAD = 8;  // spans whose bytes are asked for before they are copied
  constexpr int64_t ASKED_BYTES = 1024, LINE_BYTES = 64;  // of each: the processor goes on by itself
  const int64_t count = starts.size;
  if (sizes.size != count || targets.size != count || (which ? which.size != count : blocks.size != 1)) return BOUNDS;
  for (int64_t i = 0; i < count; i++) {
    const int64_t block = which ? which[i] : 0, size = sizes[i];
    if (!blocks.holds(block) || !out.holds(targets[i], size)) return BOUNDS;
    if (!blocks[block].holds(starts[i], size)) return i;
    const int64_t next = i + AHEAD, from = next >= count ? -1 : which ? which[next] : 0;
    if (blocks.holds(from)) {
      const uintptr_t address = reinterpret_cast<uintptr_t>(blocks[from].data) + static_cast<uintptr_t>(starts[next]);
      for (int64_t line = 0; line < min(sizes[next], ASKED_BYTES); line += LINE_BYTES)
        __builtin_prefetch(reinterpret_cast<const void *>(address + static_cast<uintptr_t>(line)));
    }
    copy_short(out.data + targets[i], blocks[block].data + starts[i], size);
  }
  return count;
}

}  // namespace rm
