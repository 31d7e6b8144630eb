// Memory aligned for packs, which ends the process if there is none left.
#ifndef RAYFBNN_MEMORY_HPP
#define RAYFBNN_MEMORY_HPP

#include <stdlib.h>

namespace RAYFBNN_NAMESPACE {

template <class T>
T* allocate(size_t n) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, n * sizeof(T) + 64) != 0) abort();
    return static_cast<T*>(memory);
}

}  // namespace RAYFBNN_NAMESPACE
#endif
