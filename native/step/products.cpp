#include "native/step/products.h"

#include <algorithm>

namespace sojourn {

namespace {

// Rows of a tile: their quantised activations stay in the second cache level while blocks of weights pass.
constexpr int kRowTile = 96;

// Blocks of outputs that make up an item: enough items to share the load, none too small to be worth dealing out.
int blocks_per_item(int blocks, int rows, int threads) {
    if (rows > kRowTile) return 8;
    const int share = blocks / (threads * 4);
    return std::clamp((share + 3) / 4 * 4, 4, 64);
}

int pieces(int whole, int piece) { return (whole + piece - 1) / piece; }

Range piece_of(int index, int piece, int whole) { return {index * piece, std::min(whole, (index + 1) * piece)}; }

}  // namespace

void multiply(Team& team, const Kernels& kernels, std::initializer_list<Product> products, const Activations& x,
              int rows) {
    const int row_tiles = pieces(rows, kRowTile);
    int all_blocks = 0;
    for (const Product& product : products) all_blocks += num_blocks(product.w);
    const int step = blocks_per_item(all_blocks, rows, team.size());
    int items = 0;
    for (const Product& product : products) items += pieces(num_blocks(product.w), step) * row_tiles;

    team.for_each(items, 1, [&](int item) {
        for (const Product& product : products) {
            const int blocks = num_blocks(product.w);
            const int own_items = pieces(blocks, step) * row_tiles;
            if (item < own_items) {
                kernels.linear(product.w, x, piece_of(item % row_tiles, kRowTile, rows),
                               piece_of(item / row_tiles, step, blocks), product.out, product.stride, product.epilogue);
                return;
            }
            item -= own_items;
        }
    });
}

void multiply_gated(Team& team, const Kernels& kernels, const Matrix& gate, const Matrix& up, const Activations& x,
                    int rows, float* out, ptrdiff_t stride, Activation activation) {
    const int row_tiles = pieces(rows, kRowTile);
    const int blocks = num_blocks(gate);
    const int step = blocks_per_item(blocks, rows, team.size());
    team.for_each(pieces(blocks, step) * row_tiles, 1, [&](int item) {
        kernels.gated(gate, up, x, piece_of(item % row_tiles, kRowTile, rows), piece_of(item / row_tiles, step, blocks),
                      out, stride, activation);
    });
}

}  // namespace sojourn
