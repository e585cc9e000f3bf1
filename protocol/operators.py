"""The operators that a graph in a bundle may use: plain arithmetic on tensors of the default domain.

No Loop, Scan or If (a few bytes of them can run for ever), nothing whose whole purpose is to build tensors of a size
chosen by data (ConstantOfShape, Range; Expand and Reshape stay, for exported graphs need them, so the signature remains
the first defence), no random numbers, no custom domain.
"""

from __future__ import annotations

ALLOWED_OPERATORS = frozenset(
    """
    Abs Add And ArgMax AveragePool BatchNormalization Cast CastLike Clip Concat Constant Conv ConvTranspose Cos DequantizeLinear Div
    DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements Gemm GlobalAveragePool Greater
    GreaterOrEqual HardSigmoid HardSwish Identity InstanceNormalization IsNaN LayerNormalization LeakyRelu Less LessOrEqual
    Log LogSoftmax MatMul MatMulInteger Max MaxPool Mean Min Mish Mul Neg Not Or PRelu Pad Pow QuantizeLinear Reciprocal
    ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare Relu Reshape ScatterElements ScatterND Shape Sigmoid
    Sign Sin Slice Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh TopK Transpose Unsqueeze Where Xor
    """.split()  # noqa: SIM905  # eighty quoted names are harder to read
)
