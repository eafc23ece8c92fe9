#include "native/step/products.h"

#include <algorithm>
#include <limits>

namespace sojourn {

namespace {

// Rows of a tile: their quantised activations stay in the second cache level while blocks of weights pass.
constexpr int kRowTile = 96;

int pieces(int whole, int piece) { return (whole + piece - 1) / piece; }

// Blocks of outputs that make up an item: about four items a worker, none too small to be worth dealing out, and as
// near as possible the same load for each worker (36 blocks on two workers are 6 x 6, not 9 x 4).
int blocks_per_item(std::initializer_list<Product> products, int rows, int threads) {
    if (rows > kRowTile) return 8;
    int all = 0;
    for (const Product& product : products) all += num_blocks(product.w);
    const int share = std::clamp(all / (threads * 4), 4, 64);
    int best = share;
    int least = std::numeric_limits<int>::max();
    for (int step = std::min(64, 2 * share); step >= std::max(4, share / 2); step--) {
        int items = 0;
        for (const Product& product : products) items += pieces(num_blocks(product.w), step);
        const int load = pieces(items, threads) * step;
        if (load < least) {
            least = load;
            best = step;
        }
    }
    return best;
}

Range piece_of(int index, int piece, int whole) { return {index * piece, std::min(whole, (index + 1) * piece)}; }

}  // namespace

void multiply(Team& team, const Kernels& kernels, std::initializer_list<Product> products, const Activations& x,
              int rows) {
    const int row_tiles = pieces(rows, kRowTile);
    const int step = blocks_per_item(products, rows, team.size());
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
    const int step = blocks_per_item({{gate, out, stride}}, rows, team.size());
    team.for_each(pieces(blocks, step) * row_tiles, 1, [&](int item) {
        kernels.gated(gate, up, x, piece_of(item % row_tiles, kRowTile, rows), piece_of(item / row_tiles, step, blocks),
                      out, stride, activation);
    });
}

}  // namespace sojourn
