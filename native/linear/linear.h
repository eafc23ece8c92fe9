// Contract between the model's step and the linear kernels: y = W x over a ragged batch of rows.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sojourn {

enum class MatrixKind : uint8_t { F32, Q8, Q4, Q4M };

// A packed weight matrix [rows, cols]; layout in src/sojourn/models/packed.py. Not owned.
struct Matrix {
    MatrixKind kind = MatrixKind::F32;
    int rows = 0;
    int cols = 0;
    const void* data = nullptr;        // float (F32) or uint8_t quants
    const uint16_t* scales = nullptr;  // IEEE half
    const uint16_t* mins = nullptr;    // IEEE half, Q4M only
};

// Input rows of one or more matrices, in the two forms kernels read. `values` always points to the f32 rows where an
// F32 matrix reads them; the quantised form is per row and group of 32: quant * scale. `isums` and `sums` are what an
// offset or a minimum of the weights multiplies: the sum of the quants, and that sum times the scale.
struct Activations {
    int cols = 0;
    const float* values = nullptr;  // [rows, cols]
    int8_t* quants = nullptr;       // [rows, cols], in [-127, 127]
    float* scales = nullptr;        // [rows, cols / 32]
    int32_t* isums = nullptr;       // [rows, cols / 32]
    float* sums = nullptr;          // [rows, cols / 32]
};

// Half open: of activation rows, or of blocks of 16 output rows.
struct Range {
    int begin = 0;
    int end = 0;
};

inline constexpr int kRowsPerBlock = 16;
inline constexpr int kGroup = 32;

// Inlined everywhere, so that no copy compiled for one instruction set serves another.
[[gnu::always_inline]] constexpr int num_blocks(const Matrix& w) {
    return (w.rows + kRowsPerBlock - 1) / kRowsPerBlock;
}

enum class Epilogue : uint8_t { Store, Add };
enum class Activation : uint8_t { Silu, GeluTanh };

}  // namespace sojourn
