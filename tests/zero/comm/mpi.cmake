# How tests call mpirun, with options of the tests' alone: ZR_TEST_MPIRUN, "" where a build has none,
# and what they set for it, ZR_TEST_MPI_ENVIRONMENT: more ranks than cores, on this machine alone,
# perhaps by root in a container. Where MPICH is found as well, ZR_TEST_MPICH_MPIRUN.
set(ZR_TEST_MPIRUN "")
set(ZR_TEST_MPI_ENVIRONMENT "")
set(ZR_TEST_MPICH_MPIRUN "")
if("openmpi" IN_LIST ZR_MPI_KINDS AND ZR_MPIRUN_openmpi)
  set(ZR_TEST_MPIRUN "${ZR_MPIRUN_openmpi} --oversubscribe --bind-to none")
  set(ZR_TEST_MPI_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
                              OMPI_MCA_btl=self,vader,tcp OMPI_MCA_mpi_yield_when_idle=1)
endif()
if("mpich" IN_LIST ZR_MPI_KINDS AND ZR_MPIRUN_mpich)
  set(ZR_TEST_MPICH_MPIRUN "${ZR_MPIRUN_mpich}")
endif()
