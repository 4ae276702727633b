// The heap of CUDA test programs, in host memory that the GPU reaches: tests of operations keep their data in std::vector
// and hand its address to any backend. A program that links cuda_heap.cpp has operator new and delete replaced; until
// open_cuda_heap() succeeds, and on machines without a GPU, they are malloc and free.
#pragma once

#include <cstddef>

namespace tensorfold::test {

/// Serves what is allocated from now on out of one pinned block of `bytes`. False when the block can't be had. A program
/// that needs more than the block stops with a message: memory that the GPU can't reach would fault in a kernel instead.
bool open_cuda_heap(std::size_t bytes);

}  // namespace tensorfold::test
