// The instruction sets the core can use, and the kernels compiled for each.
//
// Kernels are templates over lanes (native/simd); isa/{portable,avx2,avx512}.cpp instantiate them, each with its own
// compiler flags. Everything else calls them through this table and is compiled for the plain machine.
#pragma once
#include <cstddef>

#include "native/linear/linear.h"

namespace sojourn {

enum class Isa : uint8_t { Portable, Avx2, Avx512 };

// All kernels are pure functions of their arguments and run on the calling thread. Row m of an output starts at
// out + m * stride, m counted like the rows of the input; only the rows and blocks asked for are read and written.
struct Kernels {
    const char* name;

    // linear/quantise.h: fills quants, scales, isums and sums of `rows` from x.values.
    void (*quantise)(const Activations& x, Range rows);
    // linear/multiply.h: out = W x, or out += W x. The bits of a result do not depend on the two ranges.
    void (*linear)(const Matrix& w, const Activations& x, Range rows, Range blocks, float* out, ptrdiff_t stride,
                   Epilogue epilogue);
    // linear/multiply.h: out = act(gate x) * (up x), for gate and up of one shape.
    void (*gated)(const Matrix& gate, const Matrix& up, const Activations& x, Range rows, Range blocks, float* out,
                  ptrdiff_t stride, Activation activation);
    // linear/embed.h: out[cols] = scale * row `row` of w.
    void (*embed_row)(const Matrix& w, int row, float* out, float scale);
};

// The best set this processor and operating system can run.
Isa best_isa();

// Whether this build has the set and this processor can run it. Portable always.
bool is_supported(Isa isa);

// Throws std::invalid_argument when the set is not supported.
const Kernels& kernels_for(Isa isa);

}  // namespace sojourn
