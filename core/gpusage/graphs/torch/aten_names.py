"""PyTorch's aten operators that are one ONNX operator each, by name."""

from __future__ import annotations

_FREE = (
    "alias alias_copy clone contiguous detach detach_copy dropout feature_dropout alpha_dropout identity lift "
    "lift_fresh lift_fresh_copy native_dropout positive requires_grad resolve_conj resolve_neg to _to_copy "
    "type_as bfloat16 float half double cpu cuda pin_memory _autocast_to_full_precision _autocast_to_reduced_precision"
)
FREE = frozenset(_FREE.split())
"""Operators without cost in evaluation, unless they change the element type."""

_VIEWS = {
    "Reshape": "view view_as reshape reshape_as flatten unflatten squeeze unsqueeze _unsafe_view _reshape_alias "
    "as_strided unfold atleast_1d atleast_2d atleast_3d ravel view_copy squeeze_copy unsqueeze_copy view_as_real "
    "view_as_complex",
    "Transpose": "transpose permute t numpy_T mT adjoint movedim moveaxis swapaxes swapdims transpose_copy "
    "permute_copy t_copy channel_shuffle",
    "Slice": "slice narrow select slice_copy select_copy diagonal",
    "Split": "split split_with_sizes chunk unbind tensor_split unsafe_split unsafe_chunk unsafe_split_with_sizes "
    "split_copy split_with_sizes_copy unbind_copy hsplit vsplit",
    "Expand": "expand expand_as broadcast_to expand_copy",
}

# Operators whose name is that of ONNX in small letters.
_SAME_NAME = (
    "Abs Add ArgMax ArgMin Ceil Celu Cos Cosh Elu Gelu HardSigmoid HardSwish Im2Col IsInf IsNaN Mish Relu Round Selu "
    "Sigmoid Sinh Softplus Sqrt Tan Tanh"
)
_PLAIN = {
    **{name: name.lower() for name in _SAME_NAME.split()},
    "Acos": "acos arccos",
    "Acosh": "acosh arccosh",
    "And": "logical_and bitwise_and __and__",
    "Asin": "asin arcsin",
    "Asinh": "asinh arcsinh",
    "Atan": "atan arctan atan2 arctan2 hypot",
    "Atanh": "atanh arctanh",
    "BitShift": "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__",
    "Clip": "clamp clamp_min clamp_max clip relu6 hardtanh",
    "Col2Im": "col2im unfold_backward",
    "Concat": "cat concat concatenate stack hstack vstack dstack roll _pack_padded_sequence _pad_packed_sequence",
    "ConstantOfShape": "zeros ones full empty new_zeros new_ones new_full new_empty zeros_like ones_like full_like "
    "empty_like scalar_tensor fill zero new_empty_strided empty_strided empty_permuted eye",
    "CumSum": "cumsum cumprod cummax cummin logcumsumexp",
    "DepthToSpace": "pixel_shuffle",
    "Div": "div divide true_divide floor_divide",
    "Equal": "eq ne not_equal",
    "DeformConv": "torchvision.deform_conv2d",
    "Erf": "erf erfc erfinv",
    "Exp": "exp exp2 expm1",
    "Floor": "floor trunc fix frac bucketize searchsorted",
    "GatherElements": "gather take_along_dim",
    "Greater": "gt greater",
    "GreaterOrEqual": "ge greater_equal",
    "GridSample": "grid_sampler grid_sampler_2d grid_sampler_3d",
    "GroupNormalization": "group_norm native_group_norm",
    "InstanceNormalization": "instance_norm",
    "LayerNormalization": "layer_norm native_layer_norm",
    "LeakyRelu": "leaky_relu rrelu",
    "Less": "lt less",
    "LessOrEqual": "le less_equal",
    "Log": "log log2 log10 log1p logaddexp logaddexp2 logit xlogy lgamma digamma",
    "LogSoftmax": "log_softmax _log_softmax log_sigmoid",
    # A product whose rows are sorted by the matrix that they multiply: a mixture of experts.
    "GroupedMatMul": "_grouped_mm grouped_mm transformers.grouped_mm_fallback",
    "MatMul": "matmul mm bmm mv dot vdot _euclidean_dist _cdist_forward __matmul__ linalg_matmul chain_matmul",
    "Max": "maximum fmax",
    "Min": "minimum fmin",
    "Mod": "remainder fmod",
    "Mul": "mul multiply square addcmul addcdiv glu lerp linalg_cross copysign complex polar",
    "Neg": "neg negative",
    "Not": "logical_not bitwise_not",
    "OneHot": "one_hot",
    "Or": "logical_or bitwise_or __or__",
    "PRelu": "prelu _prelu_kernel",
    "Pad": "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d zero_pad2d",
    "Pow": "pow float_power",
    "RMSNormalization": "rms_norm _fused_rms_norm",
    "RandomNormalLike": "randn randn_like normal normal_functional",
    "RandomUniformLike": "rand rand_like bernoulli uniform randint exponential multinomial",
    "Range": "arange linspace logspace tril_indices triu_indices randperm hann_window hamming_window blackman_window "
    "bartlett_window kaiser_window",
    "Reciprocal": "reciprocal rsqrt",
    "ReduceL2": "norm linalg_vector_norm frobenius_norm _weight_norm_interface _weight_norm",
    "ReduceLogSumExp": "logsumexp",
    "ReduceMax": "amax max any",
    "ReduceMean": "mean var var_mean std std_mean",
    "ReduceMin": "amin min all",
    "ReduceProd": "prod",
    "ReduceSum": "sum nansum count_nonzero histc bincount nll_loss_forward nll_loss2d_forward",
    "ReduceSumSquare": "mse_loss smooth_l1_loss huber_loss binary_cross_entropy",
    "Resize": "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d",
    "RoiAlign": "torchvision.roi_align torchvision.ps_roi_align",
    "ScatterElements": "scatter scatter_add scatter_reduce max_unpool2d max_unpool3d",
    "ScatterND": "index_put index_add index_copy slice_scatter select_scatter copy masked_scatter "
    "_unsafe_index_put index_fill",
    "Sign": "sign sgn",
    "Sin": "sin sinc",
    "Softmax": "softmax _softmax _safe_softmax",
    "SpaceToDepth": "pixel_unshuffle",
    "Sub": "sub subtract rsub diff",
    "Swish": "silu",
    "Tile": "repeat tile repeat_interleave flip fliplr rot90",
    "TopK": "topk sort argsort kthvalue median nanmedian mode",
    "Trilu": "tril triu",
    "Where": "masked_fill nan_to_num threshold hardshrink softshrink",
    "Xor": "logical_xor bitwise_xor __xor__",
}

_SPREAD = {name: op_type for op_type, names in {**_VIEWS, **_PLAIN}.items() for name in names.split()}

VIEWS = frozenset(name for names in _VIEWS.values() for name in names.split()) - frozenset(_VIEWS["Expand"].split())
"""Operators that return their input in another shape: a view of a weight is a weight."""

OP_TYPES: dict[str, str] = _SPREAD
"""ONNX operator type by aten name."""

IN_PLACE = {f"{name}_": f"{OP_TYPES[name]}InPlace" for name in ("leaky_relu", "rrelu", "elu", "celu", "selu")}
"""Operators that keep another tensor for the backward pass where they write in place: their result."""
