// Memory aligned for packs, and how much of it stays in a cache. Rows of large arrays are about a page of 4 kB apart:
// these get pages of 2 MB where the system gives them, which saves looking addresses up for every row.
#ifndef RAYFBNN_MEMORY_HPP
#define RAYFBNN_MEMORY_HPP

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace RAYFBNN_NAMESPACE {

constexpr size_t LARGE_PAGE = 2097152;

// Parts of a second cache of 1 MB or more. Of values and derivatives of a block of cases (half as much is nearly as
// fast), and of one factor of a product of large matrices.
constexpr long BLOCK_BYTES = 393216, FACTOR_BYTES = 524288;

// Null if there is none left.
inline void* aligned_bytes(size_t size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, size >= LARGE_PAGE ? LARGE_PAGE : 64, size) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
    if (size >= LARGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);  // where it is refused, pages stay small
#endif
    return memory;
}

// Ends the process if there is none left.
template <class T>
T* allocate(size_t n) {
    void* memory = aligned_bytes(n * sizeof(T) + 64);
    if (!memory) abort();
    return static_cast<T*>(memory);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
