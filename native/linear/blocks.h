// Where things are inside a packed matrix: the layout of src/sojourn/models/packed.py, as pointers.
#pragma once
#include <cstddef>

#include "native/linear/linear.h"

namespace sojourn {

inline constexpr int kQuadBytes = 64;                            // four inputs of sixteen rows, a byte each
inline constexpr int kWideBytes = kGroup * kRowsPerBlock;        // a group of one block, Q8
inline constexpr int kNarrowBytes = kGroup * kRowsPerBlock / 2;  // a group of one block, Q4 and Q4M

// Sixteen rows of a matrix, all their columns.
struct Block {
    const float* values = nullptr;     // F32: [cols, 16]
    const uint8_t* quants = nullptr;   // [groups, kWideBytes or kNarrowBytes]
    const uint16_t* scales = nullptr;  // [groups, 16]
    const uint16_t* mins = nullptr;    // [groups, 16], Q4M only
};

[[gnu::always_inline]] inline Block block_of(const Matrix& w, int index) {
    if (w.kind == MatrixKind::F32) {
        return {.values = static_cast<const float*>(w.data) + ptrdiff_t{index} * w.cols * kRowsPerBlock};
    }
    const ptrdiff_t groups = w.cols / kGroup;
    const ptrdiff_t group_bytes = w.kind == MatrixKind::Q8 ? kWideBytes : kNarrowBytes;
    const ptrdiff_t halfs = index * groups * kRowsPerBlock;
    return {.quants = static_cast<const uint8_t*>(w.data) + index * groups * group_bytes,
            .scales = w.scales + halfs,
            .mins = w.kind == MatrixKind::Q4M ? w.mins + halfs : nullptr};
}

// Column 32 group + k of row `lane`, as stored: 0 to 255.
[[gnu::always_inline]] inline int wide_quant(const Block& block, int group, int lane, int k) {
    return block.quants[group * kWideBytes + k / 4 * kQuadBytes + lane * 4 + k % 4];
}

// The same of a 4-bit matrix: 0 to 15. The second half of the group is in the high nibbles.
[[gnu::always_inline]] inline int narrow_quant(const Block& block, int group, int lane, int k) {
    const int byte = block.quants[group * kNarrowBytes + k % 16 / 4 * kQuadBytes + lane * 4 + k % 4];
    return k < kGroup / 2 ? byte & 15 : byte >> 4;
}

}  // namespace sojourn
