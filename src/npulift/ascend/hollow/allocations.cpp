// What torch_npu's caching allocator hands out and takes back, one record each, in the thread and operator that asked.
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>

#include "trace.h"

using Entry = c10_npu::NPUCachingAllocator::TraceEntry;

extern "C" __attribute__((visibility("default"))) int allocations_start() {
  if (!c10_npu::NPUCachingAllocator::get()) return 1;
  c10_npu::NPUCachingAllocator::attachAllocatorTraceTracker([](const Entry &e) {
    switch (e.action_) {
      case Entry::ALLOC: hollow_record(HOLLOW_ALLOCATED, 0, 0, (uint64_t)e.size_, (uint64_t)e.addr_, 0); break;
      case Entry::FREE_COMPLETED: hollow_record(HOLLOW_RELEASED, 0, 0, (uint64_t)e.size_, (uint64_t)e.addr_, 0); break;
      case Entry::OOM: hollow_record(HOLLOW_OUT_OF_MEMORY, 0, 0, (uint64_t)e.size_, (uint64_t)e.addr_, 0); break;
      default: break;
    }
  });
  return 0;
}
