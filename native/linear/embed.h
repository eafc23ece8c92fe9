// One row of a packed matrix as floats: the lookup of an embedding.
#pragma once
#include "native/linear/blocks.h"
#include "native/linear/linear.h"
#include "native/simd/lanes.h"

namespace sojourn {

template <Lanes L>
void embed_row(const Matrix& w, int row, float* out, float scale) {
    const Block block = block_of(w, row / kRowsPerBlock);
    const int lane = row % kRowsPerBlock;
    if (w.kind == MatrixKind::F32) {
        for (int k = 0; k < w.cols; ++k) out[k] = block.values[k * kRowsPerBlock + lane] * scale;
        return;
    }
    const bool is_wide = w.kind == MatrixKind::Q8;
    const int zero_point = is_wide ? 128 : w.kind == MatrixKind::Q4 ? 8 : 0;
    float scales[kLanes], mins[kLanes] = {};
    for (int group = 0; group < w.cols / kGroup; ++group) {
        L::store(scales, L::load_halfs(block.scales + group * kRowsPerBlock));
        if (block.mins != nullptr) L::store(mins, L::load_halfs(block.mins + group * kRowsPerBlock));
        for (int k = 0; k < kGroup; ++k) {
            const int quant = is_wide ? wide_quant(block, group, lane, k) : narrow_quant(block, group, lane, k);
            const float value = static_cast<float>(quant - zero_point) * scales[lane] + mins[lane];
            out[group * kGroup + k] = value * scale;
        }
    }
}

}  // namespace sojourn
