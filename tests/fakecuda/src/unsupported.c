// Runtime functions that CuPy's runtime module links to and that the fake does not model. The linker matches names
// only, so they need no parameters here. In C, and apart from the CUDA headers, which know them with parameters.

#define UNSUPPORTED(name) \
  int name(void) { return 801; /* cudaErrorNotSupported */ }

// Arrays, textures, surfaces.
UNSUPPORTED(cudaCreateSurfaceObject)
UNSUPPORTED(cudaCreateTextureObject)
UNSUPPORTED(cudaDestroySurfaceObject)
UNSUPPORTED(cudaDestroyTextureObject)
UNSUPPORTED(cudaFreeArray)
UNSUPPORTED(cudaGetChannelDesc)
UNSUPPORTED(cudaGetTextureObjectResourceDesc)
UNSUPPORTED(cudaGetTextureObjectTextureDesc)
UNSUPPORTED(cudaMalloc3DArray)
UNSUPPORTED(cudaMallocArray)
UNSUPPORTED(cudaMemcpy2DFromArray)
UNSUPPORTED(cudaMemcpy2DFromArrayAsync)
UNSUPPORTED(cudaMemcpy2DToArray)
UNSUPPORTED(cudaMemcpy2DToArrayAsync)

// Graphs.
UNSUPPORTED(cudaGraphDebugDotPrint)
UNSUPPORTED(cudaGraphDestroy)
UNSUPPORTED(cudaGraphExecDestroy)
UNSUPPORTED(cudaGraphInstantiate)
UNSUPPORTED(cudaGraphLaunch)
UNSUPPORTED(cudaGraphUpload)
UNSUPPORTED(cudaStreamBeginCapture)
UNSUPPORTED(cudaStreamEndCapture)

// Memory shared between processes.
UNSUPPORTED(cudaIpcCloseMemHandle)
UNSUPPORTED(cudaIpcGetEventHandle)
UNSUPPORTED(cudaIpcGetMemHandle)
UNSUPPORTED(cudaIpcOpenEventHandle)
UNSUPPORTED(cudaIpcOpenMemHandle)

// Managed memory, memory pools made by hand, limits, profiler.
UNSUPPORTED(cudaDeviceGetLimit)
UNSUPPORTED(cudaDeviceSetLimit)
UNSUPPORTED(cudaMallocManaged)
UNSUPPORTED(cudaMemAdvise)
UNSUPPORTED(cudaMemPoolCreate)
UNSUPPORTED(cudaMemPoolDestroy)
UNSUPPORTED(cudaMemPrefetchAsync)
UNSUPPORTED(cudaProfilerStart)
UNSUPPORTED(cudaProfilerStop)
