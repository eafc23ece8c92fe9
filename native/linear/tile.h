// The inner loops: NB blocks of 16 weight rows times MT activation rows, sums kept in registers over all columns.
//
// The result of one (activation row, weight row) pair is a fixed sequence of operations, whatever the shape of the
// tile it is computed in: per group an exact integer sum, then one or two fused multiply-adds, groups in ascending
// order. Batch invariance rests on this.
#pragma once
#include "native/linear/blocks.h"
#include "native/linear/linear.h"
#include "native/simd/lanes.h"

namespace sojourn {

template <Lanes L, int NB, int MT>
struct Sums {
    typename L::Floats at[NB][MT];
};

// Asks for the same group of the block that the next tile will read in this one's place. Left to the hardware, the
// scales and minimums arrive late at every page and the kernel runs at half the memory's bandwidth. Into the second
// level: a tile can be larger than the first. (A prefetch in an ordinary function or lambda is no effect to GCC, which
// drops the call: hence always_inline.)
template <MatrixKind K, int NB>
[[gnu::always_inline]] inline void fetch_ahead(const Block& block, int groups, int group) {
    constexpr int bytes = K == MatrixKind::Q8 ? kWideBytes : kNarrowBytes;
    const ptrdiff_t next = ptrdiff_t{NB} * groups + group;
#pragma GCC unroll 8
    for (int line = 0; line < bytes; line += kQuadBytes) __builtin_prefetch(block.quants + next * bytes + line, 0, 2);
    __builtin_prefetch(block.scales + next * kRowsPerBlock, 0, 2);
    if constexpr (K == MatrixKind::Q4M) __builtin_prefetch(block.mins + next * kRowsPerBlock, 0, 2);
}

// Adds the products of one 4-bit group. Integer sums start at -8 * (sum of the activations), so that nibbles count from
// their zero point at no cost; Q4M counts from zero and adds its minimum times that sum instead.
template <Lanes L, MatrixKind K, int NB, int MT>
[[gnu::always_inline]] inline void add_narrow_group(const Block* blocks, const Activations& x, int row, int group,
                                                    Sums<L, NB, MT>& sums) {
    const int groups = x.cols / kGroup;
    const int8_t* quants = x.quants + ptrdiff_t{row} * x.cols + group * kGroup;
    const ptrdiff_t first = ptrdiff_t{row} * groups + group;
    typename L::Sum4 part[NB][MT];
    int offset[MT];
#pragma GCC unroll 16
    for (int m = 0; m < MT; ++m) {
        offset[m] = K == MatrixKind::Q4 ? -8 * x.isums[first + m * groups] : 0;
#pragma GCC unroll 8
        for (int n = 0; n < NB; ++n) part[n][m] = L::begin4(offset[m]);
    }
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
        typename L::Bytes low[NB], high[NB];
#pragma GCC unroll 8
        for (int n = 0; n < NB; ++n) {
            const auto bytes = L::load_bytes(blocks[n].quants + group * kNarrowBytes + quad * kQuadBytes);
            low[n] = L::low_nibbles(bytes);
            high[n] = L::high_nibbles(bytes);
        }
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            const auto a = L::load_quad(quants + ptrdiff_t{m} * x.cols + 4 * quad);
            const auto b = L::load_quad(quants + ptrdiff_t{m} * x.cols + 16 + 4 * quad);
#pragma GCC unroll 8
            for (int n = 0; n < NB; ++n) part[n][m] = L::dot4(L::dot4(part[n][m], low[n], a), high[n], b);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) {
        fetch_ahead<K, NB>(blocks[n], groups, group);
        const auto scale = L::load_halfs(blocks[n].scales + group * kRowsPerBlock);
        typename L::Floats min;
        if constexpr (K == MatrixKind::Q4M) min = L::load_halfs(blocks[n].mins + group * kRowsPerBlock);
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            auto& sum = sums.at[n][m];
            const auto unit = L::mul(scale, L::broadcast(x.scales[first + m * groups]));
            sum = L::fma(L::to_floats(L::end4(part[n][m], offset[m])), unit, sum);
            if constexpr (K == MatrixKind::Q4M) sum = L::fma(min, L::broadcast(x.sums[first + m * groups]), sum);
        }
    }
}

// The same for 8-bit groups: stored + 128, so sums start at -128 * (sum of the activations).
template <Lanes L, int NB, int MT>
[[gnu::always_inline]] inline void add_wide_group(const Block* blocks, const Activations& x, int row, int group,
                                                  Sums<L, NB, MT>& sums) {
    const int groups = x.cols / kGroup;
    const int8_t* quants = x.quants + ptrdiff_t{row} * x.cols + group * kGroup;
    const ptrdiff_t first = ptrdiff_t{row} * groups + group;
    typename L::Ints part[NB][MT];
#pragma GCC unroll 16
    for (int m = 0; m < MT; ++m) {
#pragma GCC unroll 8
        for (int n = 0; n < NB; ++n) part[n][m] = L::broadcast_int(-128 * x.isums[first + m * groups]);
    }
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
        typename L::Bytes bytes[NB];
#pragma GCC unroll 8
        for (int n = 0; n < NB; ++n) {
            bytes[n] = L::load_bytes(blocks[n].quants + group * kWideBytes + quad * kQuadBytes);
        }
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            const auto a = L::load_quad(quants + ptrdiff_t{m} * x.cols + 4 * quad);
#pragma GCC unroll 8
            for (int n = 0; n < NB; ++n) part[n][m] = L::dot8(part[n][m], bytes[n], a);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) {
        fetch_ahead<MatrixKind::Q8, NB>(blocks[n], groups, group);
        const auto scale = L::load_halfs(blocks[n].scales + group * kRowsPerBlock);
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            auto& sum = sums.at[n][m];
            const auto unit = L::mul(scale, L::broadcast(x.scales[first + m * groups]));
            sum = L::fma(L::to_floats(part[n][m]), unit, sum);
        }
    }
}

template <Lanes L, int NB, int MT>
[[gnu::always_inline]] inline void add_column(const Block* blocks, const Activations& x, int row, int column,
                                              Sums<L, NB, MT>& sums) {
    const float* values = x.values + ptrdiff_t{row} * x.cols + column;
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) {
        const auto weights = L::load(blocks[n].values + ptrdiff_t{column} * kRowsPerBlock);
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            auto& sum = sums.at[n][m];
            sum = L::fma(weights, L::broadcast(values[ptrdiff_t{m} * x.cols]), sum);
        }
    }
}

// out[NB][MT][16] = blocks[0, NB) times activation rows [row, row + MT).
template <Lanes L, MatrixKind K, int NB, int MT>
void tile(const Block* blocks, const Activations& x, int row, float* out) {
    Sums<L, NB, MT> sums;
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) {
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) sums.at[n][m] = L::zero();
    }
    if constexpr (K == MatrixKind::F32) {
        for (int column = 0; column < x.cols; ++column) add_column<L, NB, MT>(blocks, x, row, column, sums);
    } else {
        for (int group = 0; group < x.cols / kGroup; ++group) {
            if constexpr (K == MatrixKind::Q8) {
                add_wide_group<L, NB, MT>(blocks, x, row, group, sums);
            } else {
                add_narrow_group<L, K, NB, MT>(blocks, x, row, group, sums);
            }
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < NB; ++n) {
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) L::store(out + (n * MT + m) * kLanes, sums.at[n][m]);
    }
}

}  // namespace sojourn
