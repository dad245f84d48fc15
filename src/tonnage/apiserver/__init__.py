"""The embedded API server: what kubectl and client-go need to believe that it is one."""
