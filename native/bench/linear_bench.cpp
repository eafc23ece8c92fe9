// Prints what the linear kernels do on SmolLM2's shapes, beside what the memory of this machine allows.
//
//     linear_bench [portable|avx2|avx512]
#include <cstdio>
#include <cstring>

#include "native/bench/chain.h"

namespace sojourn::bench {
namespace {

double best_of(int repeats, auto run) {
    double best = 1e9;
    for (int repeat = 0; repeat < repeats; ++repeat) best = std::min(best, run());
    return best;
}

void bench_kind(const Kernels& kernels, MatrixKind kind, const char* name) {
    Chain chain(kind, MatrixKind::Q8, 512);
    for (const int threads : {1, 2}) {
        const std::vector<uint64_t> words(chain.layer_bytes() / 8, 1);
        const double limit = read_bandwidth(words, threads);
        for (const int rows : {1, 4, 16, 32, 512}) {
            const int repeats = rows > 100 ? 3 : 9;
            const double seconds = best_of(repeats, [&] { return chain.run_layers(kernels, rows, threads); });
            const double bandwidth = chain.layer_bytes() / seconds;
            std::printf("%-4s %d threads %4d rows %8.2f ms %7.1f GB/s (%3.0f %% of reading) %7.0f GOP/s\n", name,
                        threads, rows, seconds * 1e3, bandwidth / 1e9, 100 * bandwidth / limit,
                        rows * Chain::layer_operations() / seconds / 1e9);
        }
        const double seconds = best_of(9, [&] { return chain.run_head(kernels, threads); });
        std::printf("%-4s %d threads q8 head  %8.2f ms %7.1f GB/s\n", name, threads, seconds * 1e3,
                    chain.head_bytes() / seconds / 1e9);
    }
}

}  // namespace
}  // namespace sojourn::bench

int main(int argc, char** argv) {
    using namespace sojourn;
    Isa chosen = best_isa();
    for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
        if (argc > 1 && is_supported(isa) && std::strcmp(kernels_for(isa).name, argv[1]) == 0) chosen = isa;
    }
    const Kernels& kernels = kernels_for(chosen);
    std::printf("kernels: %s\n", kernels.name);
    bench::bench_kind(kernels, MatrixKind::Q4M, "q4m");
    bench::bench_kind(kernels, MatrixKind::Q4, "q4");
    bench::bench_kind(kernels, MatrixKind::Q8, "q8");
}
