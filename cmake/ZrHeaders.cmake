# The public headers: what is installed, and all that a program outside may include. Each includes
# only others of this list. What is not here is internal, and may change without a word.
set(ZR_PUBLIC_HEADERS
    # What programs use; zero/zero.h includes all of these.
    zero/zero.h
    zero/config.h
    zero/ranks.h
    zero/runtime.h
    zero/updater.h
    zero/hardware_json.h
    zero/options.h
    zero/optim/optimizer.h
    zero/plan/run_largest.h
    zero/plan/run_plan.h
    zero/plan/run_search.h
    zero/plan/run_times.h
    zero/checkpoint/checkpoint.h
    zero/schedule/model.h
    zero/schedule/order.h
    zero/comm/comm.h
    zero/comm/launch.h
    offload/stash.h
    offload/store.h
    allocator/allocator.h
    allocator/planner.h
    allocator/record.h
    allocator/replay.h
    allocator/snapshot.h
    kernels/device.h
    kernels/dtype.h
    kernels/encoding.h
    kernels/kernels.h
    kernels/own_kernel.h
    kernels/simulation.h
    kernels/update.h
    kernels/base/hardware.h
    kernels/base/log.h
    kernels/base/status.h
    kernels/base/text_file.h
    kernels/base/trace.h
    kernels/nn/nn.h
    # For those who implement a store, a device or a communicator of their own.
    offload/store_backend.h
    kernels/device_backend.h
    kernels/device_trace.h
    zero/comm/comm_backend.h)
# Of libzero_models. They are installed as they are included: without "examples/".
if(ZR_NN)
  list(APPEND ZR_PUBLIC_HEADERS examples/models/parts.h examples/models/gpt2/gpt.h
       examples/models/gpt2/tensors.h examples/models/decoder/decoder.h
       examples/models/shape.h examples/models/lora.h)
endif()
