// Which tiles exist for a unit, and the choice among them. Shapes change speed, never a bit of a result.
#pragma once
#include "native/linear/tile.h"

namespace sojourn {

// out[NB][MT][16]
using TileFunction = void (*)(const Block* blocks, const Activations& x, int row, float* out);

inline constexpr int kTileBlocksMax = 4;
inline constexpr int kTileRowsMax = 6;

// How many blocks a tile takes for this many activation rows. A tile wants its sums in registers, and with one row it
// wants independent sums to hide the latency of their chains.
template <Lanes L>
[[gnu::always_inline]] constexpr int tile_blocks_max(int rows) {
    if (L::kRegisters >= 32) return rows == 1 ? 4 : 2;
    return L::kRegisters >= 8 && rows == 1 ? 2 : 1;
}

// How many activation rows a tile takes with this many blocks.
template <Lanes L>
[[gnu::always_inline]] constexpr int tile_rows_max(int blocks) {
    if (L::kRegisters >= 32) return blocks > 2 ? 1 : kTileRowsMax;
    return L::kRegisters >= 8 && blocks == 1 ? 4 : 1;
}

template <Lanes L, MatrixKind K, int NB>
TileFunction tile_of_rows(int rows) {
    if constexpr (tile_rows_max<L>(NB) >= 6) {
        if (rows == 6) return tile<L, K, NB, 6>;
        if (rows == 5) return tile<L, K, NB, 5>;
    }
    if constexpr (tile_rows_max<L>(NB) >= 4) {
        if (rows == 4) return tile<L, K, NB, 4>;
        if (rows == 3) return tile<L, K, NB, 3>;
        if (rows == 2) return tile<L, K, NB, 2>;
    }
    return tile<L, K, NB, 1>;
}

template <Lanes L, MatrixKind K>
TileFunction tile_of_blocks(int blocks, int rows) {
    if constexpr (tile_blocks_max<L>(1) >= 4) {
        if (blocks == 4) return tile_of_rows<L, K, 4>(rows);
    }
    if constexpr (tile_blocks_max<L>(1) >= 2) {
        if (blocks == 2) return tile_of_rows<L, K, 2>(rows);
    }
    return tile_of_rows<L, K, 1>(rows);
}

template <Lanes L>
TileFunction tile_for(MatrixKind kind, int blocks, int rows) {
    switch (kind) {
        case MatrixKind::F32:
            return tile_of_blocks<L, MatrixKind::F32>(blocks, rows);
        case MatrixKind::Q8:
            return tile_of_blocks<L, MatrixKind::Q8>(blocks, rows);
        case MatrixKind::Q4:
            return tile_of_blocks<L, MatrixKind::Q4>(blocks, rows);
        case MatrixKind::Q4M:
            break;
    }
    return tile_of_blocks<L, MatrixKind::Q4M>(blocks, rows);
}

// Rows left over are spread, so that seven become four and three: a tile of one row unpacks weights for little work.
[[gnu::always_inline]] constexpr int next_rows(int left, int rows_max) {
    const int tiles = (left + rows_max - 1) / rows_max;
    return (left + tiles - 1) / tiles;
}

}  // namespace sojourn
