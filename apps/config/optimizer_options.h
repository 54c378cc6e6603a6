// Options of Adam and its gradients.
#pragma once

#include "core/tensor/dtype.h"

namespace megalith {

enum class OptimizerType { kAdam };
enum class GradientDType { kAuto, kFp32, kBf16 };

struct OptimizerOptions {
  OptimizerType optimizer = OptimizerType::kAdam;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double clip_grad = 1.0;                 // global L2 norm; 0: no clipping
  DType main_grads_dtype = DType::kFp32;  // kFp32; kBf16 only with bf16 parameters
  bool grad_reduce_in_bf16 = false;       // as given; main_grads_dtype is then kBf16
  // Dtype of unsharded gradients of units that ranks exchange; read slot_grads_dtype().
  GradientDType megatron_fsdp_grad_comm_dtype = GradientDType::kAuto;
  DType exp_avg_dtype = DType::kFp32;     // Adam's first moment: kFp32 or kBf16
  DType exp_avg_sq_dtype = DType::kFp32;  // Adam's second moment

  DType slot_grads_dtype() const {
    if (megatron_fsdp_grad_comm_dtype == GradientDType::kAuto) return main_grads_dtype;
    return megatron_fsdp_grad_comm_dtype == GradientDType::kBf16 ? DType::kBf16 : DType::kFp32;
  }
};

}  // namespace megalith
