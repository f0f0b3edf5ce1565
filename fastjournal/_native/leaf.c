/* Module of the pure leaves, and CRC-32C (Castagnoli, reflected). */
#include "leaf.h"

/* ---- checksum ------------------------------------------------------------------------------ */

#define POLYNOMIAL 0x82F63B78u

static uint32_t table_of_crc[256];

static uint32_t crc_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size; size--)
        crc = table_of_crc[(crc ^ *data++) & 255] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc,
                                                                     const uint8_t *data,
                                                                     size_t size) {
    uint64_t wide = crc, word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    for (crc = (uint32_t)wide; size; size--)
        crc = _mm_crc32_u8(crc, *data++);
    return crc;
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static int has_instruction(void) { return 1; }
static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t word;
    for (; size >= 8; size -= 8, data += 8) {
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; size; size--)
        crc = __crc32cb(crc, *data++);
    return crc;
}
#else
static int has_instruction(void) { return 0; }
#define crc_by_instruction crc_by_table
#endif

static uint32_t (*step)(uint32_t, const uint8_t *, size_t);

uint32_t crc32c(const uint8_t *data, size_t size) { return ~step(0xFFFFFFFFu, data, size); }

static void prepare_crc(void) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        table_of_crc[byte] = crc;
    }
    step = has_instruction() ? crc_by_instruction : crc_by_table;
}

static PyObject *py_crc32c(PyObject *module, PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    uint32_t crc = crc32c(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef common_methods[] = {
    {"crc32c", py_crc32c, METH_O, "CRC-32C of bytes; google_crc32c.value is its function."},
    {NULL}};

/* ---- module -------------------------------------------------------------------------------- */

static int fill_module(PyObject *module) {
    prepare_crc();
    return begin_module(module) || PyModule_AddFunctions(module, common_methods) ||
                   PyModule_AddFunctions(module, codec_methods) ||
                   PyModule_AddFunctions(module, record_methods) ||
                   PyModule_AddFunctions(module, bulk_methods) ||
                   PyModule_AddFunctions(module, replay_methods)
               ? -1
               : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_leaves",
    .m_doc = "Pure native leaves; see fastjournal._native.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__leaves(void) { return PyModuleDef_Init(&definition); }
