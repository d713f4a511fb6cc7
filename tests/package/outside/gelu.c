/* A program outside the tree that calls a transformer's kernel: it is linked with libzero_nn. */
#include <math.h>
#include <stdio.h>
#include <zero/zero.h>

enum { N = 5 };

int main(void) {
    const float x[N] = {-3, -1, 0, 1, 3};
    float y[N];
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    zr_status_t status = zr_device_open("host", NULL, &device);
    ZR_THEN(status, zr_stream_create(device, "compute", &stream));
    ZR_THEN(status, zr_nn_gelu(stream, y, x, ZR_DTYPE_F32, N));
    ZR_THEN(status, zr_stream_synchronize(stream));
    for (int i = 0; i < N && status == ZR_OK; i++) {
        double inner = sqrt(2 / 3.14159265358979) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
        if (fabs(y[i] - x[i] / 2 * (1 + tanh(inner))) > 1e-5) {
            printf("gelu(%g) is %g\n", x[i], y[i]);
            status = ZR_ERR_DEVICE;
        }
    }
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    return status != ZR_OK;
}
