// All heavy kernels.
#pragma once
#include "attention.h"
#include "draw.h"
#include "embedding.h"
#include "grouped_linear.h"
#include "linear.h"
#include "linear_q.h"
#include "norm.h"
#include "quantize.h"
#include "rope.h"
