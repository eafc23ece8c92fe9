// y = W x over a range of activation rows and a range of output blocks, and what happens to a result on its way out.
#pragma once
#include "native/linear/shapes.h"
#include "native/simd/math.h"

namespace sojourn {

// Calls finish(block, row, sums) with sums[16] of every block in `blocks` and activation row in `rows`. Blocks go
// outside and rows inside, so that a tile's weights are read once from memory and then from the first cache level.
template <Lanes L, class Finish>
void for_each_result(const Matrix& w, const Activations& x, Range rows, Range blocks, Finish finish) {
    alignas(64) float sums[kTileBlocksMax * kTileRowsMax * kLanes];
    const int blocks_max = tile_blocks_max<L>(rows.end - rows.begin);
    for (int block = blocks.begin; block < blocks.end;) {
        const int left = blocks.end - block;
        const int num = left >= blocks_max ? blocks_max : left >= 2 && blocks_max > 2 ? 2 : 1;
        Block tile_blocks[kTileBlocksMax];
        for (int n = 0; n < num; ++n) tile_blocks[n] = block_of(w, block + n);
        for (int row = rows.begin; row < rows.end;) {
            const int count = next_rows(rows.end - row, tile_rows_max<L>(num));
            tile_for<L>(w.kind, num, count)(tile_blocks, x, row, sums);
            for (int n = 0; n < num; ++n) {
                for (int m = 0; m < count; ++m) finish(block + n, row + m, sums + (n * count + m) * kLanes);
            }
            row += count;
        }
        block += num;
    }
}

// Writes the lanes of a block that exist: the last block of a matrix may be padded.
template <Lanes L>
[[gnu::always_inline]] inline void store_block(float* out, typename L::Floats value, int lanes) {
    if (lanes >= kLanes) {
        L::store(out, value);
    } else {
        L::store_first(out, value, lanes);
    }
}

template <Lanes L>
[[gnu::always_inline]] inline typename L::Floats load_block(const float* out, int lanes) {
    return lanes >= kLanes ? L::load(out) : L::load_first(out, lanes);
}

template <Lanes L>
void linear(const Matrix& w, const Activations& x, Range rows, Range blocks, float* out, ptrdiff_t stride,
            Epilogue epilogue) {
    for_each_result<L>(w, x, rows, blocks, [&](int block, int row, const float* sums) {
        float* target = out + row * stride + block * kRowsPerBlock;
        const int lanes = w.rows - block * kRowsPerBlock;
        const auto value = L::load(sums);
        store_block<L>(target, epilogue == Epilogue::Add ? L::add(load_block<L>(target, lanes), value) : value, lanes);
    });
}

template <Lanes L>
[[gnu::always_inline]] inline typename L::Floats activate(typename L::Floats x, Activation activation) {
    return activation == Activation::Silu ? silu<L>(x) : gelu_tanh<L>(x);
}

template <Lanes L>
void gated(const Matrix& gate, const Matrix& up, const Activations& x, Range rows, Range blocks, float* out,
           ptrdiff_t stride, Activation activation) {
    const auto finish = [&](int block, int row, const float* sums) {
        float* target = out + row * stride + block * kRowsPerBlock;
        const int lanes = up.rows - block * kRowsPerBlock;
        const auto act = activate<L>(load_block<L>(target, lanes), activation);
        store_block<L>(target, L::mul(act, L::load(sums)), lanes);
    };
    // Few blocks at a time, so that what the gate left in `out` is still in a cache when its partner comes.
    for (int block = blocks.begin; block < blocks.end; block += kTileBlocksMax) {
        const int end = block + kTileBlocksMax < blocks.end ? block + kTileBlocksMax : blocks.end;
        linear<L>(gate, x, rows, {block, end}, out, stride, Epilogue::Store);
        for_each_result<L>(up, x, rows, {block, end}, finish);
    }
}

}  // namespace sojourn
